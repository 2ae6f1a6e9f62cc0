-- KEYS out, owner; ARGV id, a final frame or ''. Ends a request that only one worker may take, where that
-- worker shows no sign of life. Returns 1 if it shows none; the request ends only if a frame is given.
--#include last_frame
--#include finish
local inbox = place(ARGV[1])
local name = inbox and string.match(inbox, '^' .. WORKER_INBOX .. '(.+)$')
if not name or redis.call('EXISTS', WORKER .. name) == 1 then return 0 end
if ARGV[2] == '' then return 1 end
redis.call('HSET', KEYS[2], 'worker', LOST)
redis.call('XADD', KEYS[1], (last_frame(KEYS[1]) + 1) .. '-0', 'json', ARGV[2])
for _, key in ipairs(KEYS) do redis.call('EXPIRE', key, EXPIRES_S) end
finish(ARGV[1])
return 1
