-- KEYS out, cancel, owner; ARGV id, a final frame. Returns 1 if the request has ended here and now.
-- A request that nobody knows may still be in hand: a Redis that lost its memory has it back from its worker in
-- a moment, which finds the flag then.
--#include finish
local id = ARGV[1]
local known = redis.call('HEXISTS', ENTRIES, id) == 1
if not known and redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then
  redis.call('SET', KEYS[2], '1', 'EX', RECOVERY_S)
  return 0
end
if known and redis.call('ZSCORE', WAITING, id) and redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XADD', KEYS[1], '1-0', 'json', ARGV[2])
  redis.call('EXPIRE', KEYS[1], EXPIRES_S)
  finish(id)
  return 1
end
redis.call('SET', KEYS[2], '1', 'EX', EXPIRES_S)
return 0
