"""The Lua that runs inside Redis, where checking and changing must be one step.

Each script is safe to run again after a lost reply. They touch keys beyond KEYS (those of the request
ids that they meet), so they need one Redis (7.0 or newer, or Valkey), not a Redis Cluster.

An owner key is a hash: `worker` (the token of the process that may append, empty once handed back),
`attempts` (how many workers began the request without handing it back), `error` (what the last one
said), `ttft_ms` (from creation to the first token).
"""

from __future__ import annotations

from engine.serving.messages import ENTRIES, EXPIRES_S, GROUP, INBOXES, WAITING, WORKERS

BENCH_OFFSET = 4e15
"""Added to a benchmark's score in the waiting set (microseconds since 1970): they go last."""
RELEASED = "(handed back)"
"""The consumer that holds what a worker handed back; no worker is called so."""
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
  if where then return string.match(where, '^(%S+) (%S+)$') end
end
"""

_FINISH = f"""
{_PLACE}
local function finish(id)
  local inbox, entry = place(id)
  if inbox then
    redis.call('XACK', inbox, '{GROUP}', entry)
    redis.call('XDEL', inbox, entry)
    redis.call('HDEL', '{ENTRIES}', id)
  end
  redis.call('ZREM', '{WAITING}', id)
  redis.call('DEL', 'ml:cancel:' .. id)
  return inbox
end
"""

SUBMIT = f"""
-- KEYS inbox; ARGV id, json, limit, score offset. Returns {{'queued'|'known'|'full', place or length}}.
local id = ARGV[1]
if redis.call('HEXISTS', '{ENTRIES}', id) == 1 or redis.call('EXISTS', 'ml:out:' .. id) == 1 then
  return {{'known', (redis.call('ZRANK', '{WAITING}', id) or -1) + 1}}
end
local length = redis.call('XLEN', KEYS[1])
if length >= tonumber(ARGV[3]) then
  return {{'full', length}}
end
local entry = redis.call('XADD', KEYS[1], '*', 'id', id, 'json', ARGV[2])
redis.call('HSET', '{ENTRIES}', id, KEYS[1] .. ' ' .. entry)
local now = redis.call('TIME')
redis.call('ZADD', '{WAITING}', now[1] * 1000000 + now[2] + tonumber(ARGV[4]), id)
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

local ends = {{'nothing'}}
for _, inbox in ipairs({{{_INBOXES}}}) do
  local found = held(inbox) or abandoned(inbox) or new(inbox)
  if found then return found end
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
    local times = string.gsub(inbox, 'inbox', 'service')
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

TIDY = f"""
-- Drops what nothing will ever finish: places of requests whose entry is gone, names of workers without
-- a heartbeat, consumers unused for a day. Returns how many things it dropped.
{_PLACE}
local function consumers(inbox)
  local found = redis.pcall('XINFO', 'CONSUMERS', inbox, '{GROUP}')
  return found.err and {{}} or found
end
local dropped = 0
for _, id in ipairs(redis.call('HKEYS', '{ENTRIES}')) do
  local inbox, entry = place(id)
  if #redis.call('XRANGE', inbox, entry, entry) == 0 then
    redis.call('HDEL', '{ENTRIES}', id)
    dropped = dropped + 1
  end
end
for _, id in ipairs(redis.call('ZRANGE', '{WAITING}', 0, -1)) do
  if redis.call('HEXISTS', '{ENTRIES}', id) == 0 then
    dropped = dropped + redis.call('ZREM', '{WAITING}', id)
  end
end
for _, name in ipairs(redis.call('SMEMBERS', '{WORKERS}')) do
  if redis.call('EXISTS', 'ml:worker:' .. name) == 0 then
    dropped = dropped + redis.call('SREM', '{WORKERS}', name)
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
