-- KEYS owner, out; ARGV worker name, token, id. Says that the worker is alive and still on it.
-- Returns 1, or 0 if the request is another's by now.
--#include place
if redis.call('HGET', KEYS[1], 'worker') ~= ARGV[2] then return 0 end
redis.call('EXPIRE', KEYS[1], EXPIRES_S)
redis.call('EXPIRE', KEYS[2], EXPIRES_S)
local inbox, entry = place(ARGV[3])
if inbox then redis.call('XCLAIM', inbox, GROUP, ARGV[1], 0, entry, 'JUSTID') end
return 1
