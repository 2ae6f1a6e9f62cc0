"""The Lua that runs inside Redis, where checking and changing must be one step.

Each script is safe to run again after a lost reply. They touch keys beyond KEYS (those of the request
ids that they meet), so they need one Redis (7.0 or newer, or Valkey), not a Redis Cluster.

An owner key is a hash: `worker` (the token of the process that may append, empty once handed back),
`attempts` (how many workers began the request without handing it back), `error` (what the last one
said), `ttft_ms` (from creation to the first token).
"""

from __future__ import annotations

from engine.serving.messages import (
    BENCH,
    ENTRIES,
    EXPIRES_S,
    GROUP,
    INBOXES,
    INTERACTIVE,
    TURNS,
    WAITING,
    WORKERS,
    service_key,
    worker_inbox,
    worker_key,
)

BENCH_OFFSET = 4e15
"""Added to a benchmark's score in the waiting set (microseconds since 1970): they go last."""
_HELD_OFFSET = 2e15
"""The same for a request that waits for its submitter's turn: after whatever is in the inboxes by now."""
_HELD = "-"
"""Stands for the inbox of such a request."""
RELEASED = "(handed back)"
"""The consumer that holds what a worker handed back; no worker is called so."""
LOST = "(lost)"
"""The owner of a request whose one worker is gone: if that worker wakes, it stays silent."""
_FOREVER_MS = 3_600_000
"""Idle time given to a handed-back entry, so that the next worker claims it at once."""
_SERVICE_SAMPLES = 32
_CONSUMER_IDLE_MS = 86_400_000
_INBOXES = ", ".join(f"'{inbox}'" for inbox in INBOXES)

_LAST_FRAME = """
local function last_frame(out)
  local newest = redis.call('XREVRANGE', out, '+', '-', 'COUNT', 1)[1]
  return newest and tonumber(string.match(newest[1], '^%d+')) or 0
end
"""

_PLACE = f"""
local function place(id)
  local where = redis.call('HGET', '{ENTRIES}', id)
  if where then return string.match(where, '^(.+) (%S+)$') end
end
"""

_TURNS = f"""
local function rank_at(id, offset)
  local now = redis.call('TIME')
  redis.call('ZADD', '{WAITING}', now[1] * 1000000 + now[2] + offset, id)
end

local function enter(inbox, id, json, offset)
  local entry = redis.call('XADD', inbox, '*', 'id', id, 'json', json)
  redis.call('HSET', '{ENTRIES}', id, inbox .. ' ' .. entry)
  rank_at(id, offset)
end

-- Lets into the inbox whoever of `turn` may be there by now; forgets those that ended unseen.
local function advance(turn, width)
  local line = 'ml:turn:' .. turn
  for _, id in ipairs(redis.call('LRANGE', line, 0, -1)) do
    if redis.call('HEXISTS', '{ENTRIES}', id) == 0 then
      redis.call('LREM', line, 0, id)
      redis.call('HDEL', '{TURNS}', id)
      redis.call('DEL', 'ml:held:' .. id)
    end
  end
  for _, id in ipairs(redis.call('LRANGE', line, 0, width - 1)) do
    local held = redis.call('HMGET', 'ml:held:' .. id, 'inbox', 'json', 'offset')
    if held[1] then
      redis.call('DEL', 'ml:held:' .. id)
      enter(held[1], id, held[2], tonumber(held[3]))
    end
  end
end

local function leave_turn(id)
  local width, turn = string.match(redis.call('HGET', '{TURNS}', id) or '', '^(%d+) (.+)$')
  if not turn then return end
  redis.call('HDEL', '{TURNS}', id)
  redis.call('DEL', 'ml:held:' .. id)
  redis.call('LREM', 'ml:turn:' .. turn, 0, id)
  advance(turn, tonumber(width))
end
"""

_FINISH = f"""
{_PLACE}
{_TURNS}
local function finish(id)
  local inbox, entry = place(id)
  if inbox then
    if inbox ~= '{_HELD}' then
      redis.call('XACK', inbox, '{GROUP}', entry)
      redis.call('XDEL', inbox, entry)
    end
    redis.call('HDEL', '{ENTRIES}', id)
  end
  redis.call('ZREM', '{WAITING}', id)
  redis.call('DEL', 'ml:cancel:' .. id)
  leave_turn(id)
  return inbox
end
"""

SUBMIT = f"""
-- KEYS inbox; ARGV id, json, limit, score offset, turn or '', how many of the turn may be in the inbox,
-- how many more of it may wait outside.
-- Returns {{'queued'|'known', place}}, {{'full', length}} or {{'crowded', how many of the turn there are}}.
{_TURNS}
local id, turn = ARGV[1], ARGV[5]
if redis.call('HEXISTS', '{ENTRIES}', id) == 1 or redis.call('EXISTS', 'ml:out:' .. id) == 1 then
  return {{'known', (redis.call('ZRANK', '{WAITING}', id) or -1) + 1}}
end
local line, width, before = 'ml:turn:' .. turn, tonumber(ARGV[6]), 0
if turn ~= '' then
  advance(turn, width)
  before = redis.call('LLEN', line)
  if before >= width + tonumber(ARGV[7]) then
    return {{'crowded', before}}
  end
end
-- Those held outside take no room from whoever may enter: else one visitor's turns close it to everybody.
local waits = turn ~= '' and before >= width
local length = waits and redis.call('ZCOUNT', '{WAITING}', {_HELD_OFFSET}, '({BENCH_OFFSET}')
  or redis.call('XLEN', KEYS[1])
if length >= tonumber(ARGV[3]) then
  return {{'full', length}}
end
if turn ~= '' then
  redis.call('RPUSH', line, id)
  redis.call('HSET', '{TURNS}', id, width .. ' ' .. turn)
end
if waits then
  redis.call('HSET', 'ml:held:' .. id, 'inbox', KEYS[1], 'json', ARGV[2], 'offset', ARGV[4])
  redis.call('HSET', '{ENTRIES}', id, '{_HELD} {_HELD}')
  rank_at(id, {_HELD_OFFSET})
else
  enter(KEYS[1], id, ARGV[2], tonumber(ARGV[4]))
end
return {{'queued', redis.call('ZRANK', '{WAITING}', id) + 1}}
"""

CANCEL = f"""
-- KEYS out, cancel; ARGV id, a final frame. Returns 1 if the request has ended here and now.
{_FINISH}
local id = ARGV[1]
if redis.call('HEXISTS', '{ENTRIES}', id) == 0 then
  return 0
end
if redis.call('ZSCORE', '{WAITING}', id) and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XADD', KEYS[1], '1-0', 'json', ARGV[2])
  redis.call('EXPIRE', KEYS[1], {EXPIRES_S})
  finish(id)
  return 1
end
redis.call('SET', KEYS[2], '1', 'EX', {EXPIRES_S})
return 0
"""

TAKE = f"""
-- ARGV worker name, its token, idle ms after which another worker counts as dead.
-- Returns {{'request', id, json, attempts, last error}}, or {{'nothing', last id of each inbox...}}.
-- In each inbox: first what this worker holds already, then what a dead one held, then what is new.
-- Its own inbox and the shared interactive one are served by age.
local name, token, dead = ARGV[1], ARGV[2], ARGV[3]

local function begin(inbox, entry, pairs)
  local fields = {{}}
  for i = 1, #pairs, 2 do fields[pairs[i]] = pairs[i + 1] end
  local id = fields['id']
  if not id then
    redis.call('XACK', inbox, '{GROUP}', entry)
    redis.call('XDEL', inbox, entry)
    return nil
  end
  local owner = 'ml:owner:' .. id
  if redis.call('HGET', owner, 'worker') ~= token then
    redis.call('HSET', owner, 'worker', token)
    redis.call('HINCRBY', owner, 'attempts', 1)
  end
  redis.call('EXPIRE', owner, {EXPIRES_S})
  redis.call('HSET', '{ENTRIES}', id, inbox .. ' ' .. entry)
  redis.call('ZREM', '{WAITING}', id)
  redis.call('XCLAIM', inbox, '{GROUP}', name, 0, entry, 'JUSTID')
  local known = redis.call('HMGET', owner, 'attempts', 'error')
  return {{'request', id, fields['json'] or '', tonumber(known[1]), known[2] or ''}}
end

local function held(inbox)
  for _, pending in ipairs(redis.call('XPENDING', inbox, '{GROUP}', '-', '+', 16, name)) do
    local entry = redis.call('XRANGE', inbox, pending[1], pending[1])[1]
    local found = entry and begin(inbox, entry[1], entry[2])
    if found then return found end
    redis.call('XACK', inbox, '{GROUP}', pending[1])
  end
end

local function abandoned(inbox)
  local entry = redis.call('XAUTOCLAIM', inbox, '{GROUP}', name, dead, '0', 'COUNT', 1)[2][1]
  return entry and begin(inbox, entry[1], entry[2])
end

local function new(inbox)
  local reply = redis.call('XREADGROUP', 'GROUP', '{GROUP}', name, 'COUNT', 1, 'STREAMS', inbox, '>')
  local entry = reply and reply[1] and reply[1][2][1]
  return entry and begin(inbox, entry[1], entry[2])
end

local function next_ms(inbox)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', inbox)) do
    local info = {{}}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    if info['name'] == '{GROUP}' then
      local entry = redis.call('XRANGE', inbox, '(' .. info['last-delivered-id'], '+', 'COUNT', 1)[1]
      return entry and tonumber(string.match(entry[1], '^%d+')) or math.huge
    end
  end
  return math.huge
end

local own, shared, bench = '{worker_inbox("")}' .. name, '{INTERACTIVE}', '{BENCH}'
local older, newer = shared, own
if next_ms(own) < next_ms(shared) then older, newer = own, shared end
local found = held(own) or held(shared) or abandoned(own) or abandoned(shared) or new(older) or new(newer)
  or held(bench) or abandoned(bench) or new(bench)
if found then return found end

local ends = {{'nothing'}}
for _, inbox in ipairs({{own, shared, bench}}) do
  local info = redis.call('XINFO', 'STREAM', inbox)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then table.insert(ends, info[i + 1]) end
  end
end
return ends
"""

KEEP = f"""
-- KEYS owner, out; ARGV worker name, token, id. Says that the worker is alive and still on it.
-- Returns 1, or 0 if the request is another's by now.
{_PLACE}
if redis.call('HGET', KEYS[1], 'worker') ~= ARGV[2] then return 0 end
redis.call('EXPIRE', KEYS[1], {EXPIRES_S})
redis.call('EXPIRE', KEYS[2], {EXPIRES_S})
local inbox, entry = place(ARGV[3])
if inbox then redis.call('XCLAIM', inbox, '{GROUP}', ARGV[1], 0, entry, 'JUSTID') end
return 1
"""

RELEASE = f"""
-- KEYS owner; ARGV token, id, score, what went wrong (empty if nothing: then the attempt does not count).
-- Returns 1 if the request is now anyone's, 0 if it was not this worker's.
{_PLACE}
if redis.call('HGET', KEYS[1], 'worker') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'worker', '')
if ARGV[4] == '' then
  redis.call('HINCRBY', KEYS[1], 'attempts', -1)
else
  redis.call('HSET', KEYS[1], 'error', ARGV[4])
end
local inbox, entry = place(ARGV[2])
if inbox then
  redis.call('XCLAIM', inbox, '{GROUP}', '{RELEASED}', 0, entry, 'IDLE', {_FOREVER_MS}, 'JUSTID')
  redis.call('ZADD', '{WAITING}', ARGV[3], ARGV[2])
end
return 1
"""

APPEND = f"""
-- KEYS owner, out, cancel; ARGV token, id, number of the first frame, ttft ms or '', service ms or '',
-- frames... A service time marks the last frame as final. Without frames it only looks.
-- Returns {{'ok'|'fenced'|'gap', last frame in the stream, 1 if cancel was raised}}.
-- An owner key that is gone means that Redis lost its memory, not the request: take it again.
{_LAST_FRAME}
{_FINISH}
local owner = redis.call('HGET', KEYS[1], 'worker')
if owner and owner ~= ARGV[1] then return {{'fenced', 0, 0}} end
if not owner then redis.call('HSET', KEYS[1], 'worker', ARGV[1], 'attempts', 1) end
local last, first = last_frame(KEYS[2]), tonumber(ARGV[3])
local cancelled = redis.call('EXISTS', KEYS[3])
if first > last + 1 then return {{'gap', last, cancelled}} end
local added = false
for i = 6, #ARGV do
  local number = first + i - 6
  if number > last then
    redis.call('XADD', KEYS[2], number .. '-0', 'json', ARGV[i])
    added = true
  end
end
if ARGV[4] ~= '' then redis.call('HSETNX', KEYS[1], 'ttft_ms', ARGV[4]) end
redis.call('EXPIRE', KEYS[1], {EXPIRES_S})
redis.call('EXPIRE', KEYS[2], {EXPIRES_S})
if ARGV[5] ~= '' and added then
  local inbox = finish(ARGV[2])
  if inbox then
    local times = inbox == '{BENCH}' and '{service_key(BENCH)}' or '{service_key(INTERACTIVE)}'
    redis.call('LPUSH', times, ARGV[5])
    redis.call('LTRIM', times, 0, {_SERVICE_SAMPLES - 1})
  end
end
return {{'ok', math.max(last, first + #ARGV - 6), cancelled}}
"""

DROP = f"""
-- ARGV id. Forgets a request whose end is already in its output.
{_FINISH}
finish(ARGV[1])
return 1
"""

LOSE = f"""
-- KEYS out, owner; ARGV id, a final frame or ''. Ends a request that only one worker may take, where that
-- worker shows no sign of life. Returns 1 if it shows none; the request ends only if a frame is given.
{_LAST_FRAME}
{_FINISH}
local inbox = place(ARGV[1])
local name = inbox and string.match(inbox, '^{worker_inbox("")}(.+)$')
if not name or redis.call('EXISTS', '{worker_key("")}' .. name) == 1 then return 0 end
if ARGV[2] == '' then return 1 end
redis.call('HSET', KEYS[2], 'worker', '{LOST}')
redis.call('XADD', KEYS[1], (last_frame(KEYS[1]) + 1) .. '-0', 'json', ARGV[2])
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, {EXPIRES_S}) end
finish(ARGV[1])
return 1
"""

TIDY = f"""
-- Drops what nothing will ever finish: places and turns of requests whose entry is gone, what waits for a
-- worker that has been away for too long, names of workers without a heartbeat, consumers unused for a day.
-- Returns how many things it dropped.
{_FINISH}
local function entry_exists(id)
  local inbox, entry = place(id)
  if inbox == '{_HELD}' then return redis.call('EXISTS', 'ml:held:' .. id) == 1 end
  return #redis.call('XRANGE', inbox, entry, entry) > 0
end
local function consumers(inbox)
  local found = redis.pcall('XINFO', 'CONSUMERS', inbox, '{GROUP}')
  return found.err and {{}} or found
end
local dropped = 0
for _, id in ipairs(redis.call('HKEYS', '{ENTRIES}')) do
  if not entry_exists(id) then
    redis.call('HDEL', '{ENTRIES}', id)
    dropped = dropped + 1
  end
end
for _, id in ipairs(redis.call('HKEYS', '{TURNS}')) do
  if redis.call('HEXISTS', '{ENTRIES}', id) == 0 then leave_turn(id) end
end
for _, id in ipairs(redis.call('ZRANGE', '{WAITING}', 0, -1)) do
  if redis.call('HEXISTS', '{ENTRIES}', id) == 0 then
    dropped = dropped + redis.call('ZREM', '{WAITING}', id)
  end
end
local oldest = redis.call('TIME')[1] - {EXPIRES_S}
for _, name in ipairs(redis.call('SMEMBERS', '{WORKERS}')) do
  if redis.call('EXISTS', '{worker_key("")}' .. name) == 0 then
    local own = '{worker_inbox("")}' .. name
    for _, entry in ipairs(redis.call('XRANGE', own, '-', oldest .. '000')) do
      finish(entry[2][2])
      redis.call('XDEL', own, entry[1])
      dropped = dropped + 1
    end
    if redis.call('XLEN', own) == 0 then
      redis.call('DEL', own)
      dropped = dropped + redis.call('SREM', '{WORKERS}', name)
    end
  end
end
for _, inbox in ipairs({{{_INBOXES}}}) do
  for _, info in ipairs(consumers(inbox)) do
    local consumer = {{}}
    for i = 1, #info, 2 do consumer[info[i]] = info[i + 1] end
    if consumer['pending'] == 0 and consumer['idle'] > {_CONSUMER_IDLE_MS} then
      redis.call('XGROUP', 'DELCONSUMER', inbox, '{GROUP}', consumer['name'])
      dropped = dropped + 1
    end
  end
end
return dropped
"""
