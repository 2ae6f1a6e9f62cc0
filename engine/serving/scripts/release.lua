-- KEYS owner; ARGV token, id, score, what went wrong (empty if nothing: then the attempt does not count).
-- Returns 1 if the request is now anyone's, 0 if it was not this worker's.
--#include place
if redis.call('HGET', KEYS[1], 'worker') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'worker', '')
if ARGV[4] == '' then
  redis.call('HINCRBY', KEYS[1], 'attempts', -1)
else
  redis.call('HSET', KEYS[1], 'error', ARGV[4])
end
local inbox, entry = place(ARGV[2])
if inbox then
  redis.call('XCLAIM', inbox, GROUP, RELEASED, 0, entry, 'IDLE', FOREVER_MS, 'JUSTID')
  redis.call('ZADD', WAITING, ARGV[3], ARGV[2])
end
return 1
