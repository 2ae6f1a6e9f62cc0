"""The Lua of the token buckets: looking, refilling and taking must be one step.

A bucket is a hash: `level`, what it held, and `at`, when, in ms by the clock of Redis. One that is full again
expires, as it says no more than none. A bill, one a generation, is a hash too: `taken`, how many tokens
are charged, and for each bucket that they are charged to its capacity.
"""

from __future__ import annotations

_MINUTE_MS = 60_000
BILL_S = 3600
"""So long after the last charge nothing more is charged: it is charged every so many tokens until it ends."""

_REFILL = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000
local function level_of(bucket, capacity, per_ms)
  local state = redis.call('HMGET', bucket, 'level', 'at')
  if not state[1] then return capacity end
  return math.min(capacity, tonumber(state[1]) + math.max(0, now - tonumber(state[2])) * per_ms)
end
local function keep(bucket, capacity, per_ms, level)
  redis.call('HSET', bucket, 'level', tostring(level), 'at', string.format('%.3f', now))
  redis.call('PEXPIRE', bucket, math.ceil((capacity - level) / per_ms) + 1000)
end
"""

ADMIT = (
    _REFILL
    + f"""
-- KEYS for each subject its bucket of requests and its bucket of tokens, then bills, one a generation.
-- ARGV how many subjects, how many requests, then for each subject its requests and tokens a minute.
-- Takes from every subject, or from none if one lacks something. Returns which bucket lacks the most time
-- (0: none), the milliseconds until it has enough, and the level of each bucket.
local subjects, requests = tonumber(ARGV[1]), tonumber(ARGV[2])
local levels, lacking, wait = {{}}, 0, 0
for i = 1, 2 * subjects do
  local capacity = tonumber(ARGV[2 + i])
  local per_ms = capacity / {_MINUTE_MS}
  local level = level_of(KEYS[i], capacity, per_ms)
  local need = i % 2 == 1 and math.min(requests, capacity) or 1
  if level < need and (need - level) / per_ms > wait then
    lacking, wait = i, (need - level) / per_ms
  end
  levels[i] = level
end
local bill = {{'taken', 0}}
for i = 1, 2 * subjects do
  if i % 2 == 1 and lacking == 0 then
    local capacity = tonumber(ARGV[2 + i])
    levels[i] = levels[i] - requests
    keep(KEYS[i], capacity, capacity / {_MINUTE_MS}, levels[i])
  elseif i % 2 == 0 then
    table.insert(bill, KEYS[i])
    table.insert(bill, ARGV[2 + i])
  end
end
if lacking == 0 then
  for i = 2 * subjects + 1, #KEYS do
    redis.call('HSET', KEYS[i], unpack(bill))
    redis.call('EXPIRE', KEYS[i], {BILL_S})
  end
end
local reply = {{lacking, math.ceil(wait)}}
for i, level in ipairs(levels) do reply[2 + i] = tostring(level) end
return reply
"""
)

TAKE = (
    _REFILL
    + """
-- KEYS a bucket; ARGV what it holds, in how many ms it fills, how much to take (at most all of it).
-- Returns 0 if it was taken, else the ms until there is enough.
local capacity = tonumber(ARGV[1])
local per_ms = capacity / tonumber(ARGV[2])
local need = math.min(tonumber(ARGV[3]), capacity)
local level = level_of(KEYS[1], capacity, per_ms)
if level < need then return math.ceil((need - level) / per_ms) end
keep(KEYS[1], capacity, per_ms, level - need)
return 0
"""
)

CHARGE = (
    _REFILL
    + f"""
-- KEYS a bill; ARGV how many tokens its generation has by now. Takes those that were not taken yet.
local fields = redis.call('HGETALL', KEYS[1])
if #fields == 0 then return 0 end
redis.call('EXPIRE', KEYS[1], {BILL_S})
local taken = tonumber(redis.call('HGET', KEYS[1], 'taken'))
local fresh = tonumber(ARGV[1]) - taken
if fresh <= 0 then return 0 end
redis.call('HSET', KEYS[1], 'taken', ARGV[1])
for i = 1, #fields, 2 do
  if fields[i] ~= 'taken' then
    local capacity = tonumber(fields[i + 1])
    local per_ms = capacity / {_MINUTE_MS}
    keep(fields[i], capacity, per_ms, level_of(fields[i], capacity, per_ms) - fresh)
  end
end
return fresh
"""
)
