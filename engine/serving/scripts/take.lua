-- ARGV worker name, its token, idle ms after which another worker counts as dead, ids that it is serving.
-- Returns {'request', id, json, attempts, last error, 1 if there is output, ms since it was submitted, inbox}, or
-- {'nothing', last id of each inbox...}.
-- In each inbox: first what this worker holds already, then what a dead one held, then what is new.
-- Its own inbox and the shared interactive one are served by age.
--#include clock
local name, token, dead = ARGV[1], ARGV[2], ARGV[3]
local in_hand = {}
for i = 4, #ARGV do in_hand[ARGV[i]] = true end
local alone = #ARGV < 4

local function is_in_hand(entry)
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'id' then return in_hand[entry[2][i + 1]] end
  end
end

-- Whether whoever had the request last got somewhere with it: then it is not the request that ends workers.
local function made_progress(id)
  local newest = redis.call('XREVRANGE', OUT .. id, '+', '-', 'COUNT', 1)[1]
  local kind = newest and string.match(newest[2][2], '"type":"(%a+)"')
  -- Progress of nothing yet says only that the request waits for room.
  return kind == 'tokens' or kind == 'progress' and not string.match(newest[2][2], '"done":0[,}]')
end

-- Nearly every request is one that nobody has had. Its attempts and error are not read back: a page waits for this.
local function begin(inbox, entry, pairs, is_new)
  local fields = {}
  for i = 1, #pairs, 2 do fields[pairs[i]] = pairs[i + 1] end
  local id = fields['id']
  if not id then
    redis.call('XACK', inbox, GROUP, entry)
    redis.call('XDEL', inbox, entry)
    return nil
  end
  local owner = OWNER .. id
  local had = redis.call('HGET', owner, 'worker')
  local attempts, fault = 1, ''
  if not had then
    redis.call('HSET', owner, 'worker', token, 'began', 1, 'attempts', 1)
  elseif had ~= token then
    redis.call('HSET', owner, 'worker', token)
    local lost = redis.call('HINCRBY', owner, 'began', 1) - 1
    local most = inbox == BENCH and BENCH_MOST_LOST or MOST_LOST
    if made_progress(id) and lost <= most then redis.call('HSET', owner, 'attempts', 0) end
    redis.call('HINCRBY', owner, 'attempts', 1)
  end
  if had then
    local known = redis.call('HMGET', owner, 'attempts', 'error')
    attempts, fault = tonumber(known[1]), known[2] or ''
  end
  redis.call('EXPIRE', owner, EXPIRES_S)
  redis.call('HSET', ENTRIES, id, inbox .. ' ' .. entry)
  redis.call('ZREM', WAITING, id)
  if not is_new then redis.call('XCLAIM', inbox, GROUP, name, 0, entry, 'JUSTID') end
  local now = now_ms()
  return {'request', id, fields['json'] or '', attempts, fault, redis.call('EXISTS', OUT .. id),
    now - (tonumber(fields['at']) or now), inbox}
end

-- The first of the entries that XPENDING names which can be begun; what is no request any more is dropped.
local function first_of(inbox, named)
  for _, pending in ipairs(named) do
    local entry = redis.call('XRANGE', inbox, pending[1], pending[1])[1]
    if not entry or not is_in_hand(entry) then
      local found = entry and begin(inbox, entry[1], entry[2])
      if found then return found end
      redis.call('XACK', inbox, GROUP, pending[1])
    end
  end
end

local function held(inbox)
  return first_of(inbox, redis.call('XPENDING', inbox, GROUP, '-', '+', 16, name))
end

local function abandoned(inbox)
  -- Not XAUTOCLAIM, which looks at ten entries and stops: behind as many busy workers none would be found.
  return first_of(inbox, redis.call('XPENDING', inbox, GROUP, 'IDLE', dead, '-', '+', 4))
end

local function new(inbox)
  local reply = redis.call('XREADGROUP', 'GROUP', GROUP, name, 'COUNT', 1, 'STREAMS', inbox, '>')
  local entry = reply and reply[1] and reply[1][2][1]
  return entry and begin(inbox, entry[1], entry[2], true)
end

local function next_ms(inbox)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', inbox)) do
    local info = {}
    for i = 1, #group, 2 do info[group[i]] = group[i + 1] end
    if info['name'] == GROUP then
      local entry = redis.call('XRANGE', inbox, '(' .. info['last-delivered-id'], '+', 'COUNT', 1)[1]
      return entry and tonumber(string.match(entry[1], '^%d+')) or math.huge
    end
  end
  return math.huge
end

local own, shared, bench = WORKER_INBOX .. name, INTERACTIVE, BENCH
local found
if redis.call('XLEN', own) == 0 then
  found = held(shared) or abandoned(shared) or new(shared)
else
  local older, newer = shared, own
  if next_ms(own) < next_ms(shared) then older, newer = own, shared end
  found = held(own) or held(shared) or abandoned(own) or abandoned(shared) or new(older) or new(newer)
end
found = found or alone and (held(bench) or abandoned(bench) or new(bench))
if found then return found end

local ends = {'nothing'}
for _, inbox in ipairs({own, shared, bench}) do
  local info = redis.call('XINFO', 'STREAM', inbox)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then table.insert(ends, info[i + 1]) end
  end
end
return ends
