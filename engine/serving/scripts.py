"""The Lua that runs inside Redis, where checking and changing must be one step.

Each script is safe to run again after a lost reply. They touch keys beyond KEYS (those of the request
ids that they meet), so they need one Redis, not a Redis Cluster.
"""

from __future__ import annotations

from engine.serving.messages import ENTRIES, EXPIRES_S, GROUP, WAITING

BENCH_OFFSET = 4e15
"""Added to a benchmark's score in the waiting set (microseconds since 1970): they go last."""

_LAST_FRAME = """
local function last_frame(out)
  local newest = redis.call('XREVRANGE', out, '+', '-', 'COUNT', 1)[1]
  return newest and tonumber(string.match(newest[1], '^%d+')) or 0
end
"""

_FINISH = f"""
local function finish(id)
  local where = redis.call('HGET', '{ENTRIES}', id)
  if where then
    local inbox, entry = string.match(where, '^(%S+) (%S+)$')
    redis.call('XACK', inbox, '{GROUP}', entry)
    redis.call('XDEL', inbox, entry)
    redis.call('HDEL', '{ENTRIES}', id)
  end
  redis.call('ZREM', '{WAITING}', id)
  redis.call('DEL', 'ml:cancel:' .. id)
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
