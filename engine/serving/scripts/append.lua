-- KEYS owner, out, cancel; ARGV token, id, number of the first frame, ttft ms or '', service ms or '',
-- frames... A service time marks the last frame as final. Without frames it only looks.
-- Returns {'ok'|'fenced'|'gap', last frame in the stream, 1 if cancel was raised}.
-- An owner key that is gone means that Redis lost its memory, not the request: take it again.
--#include last_frame
--#include finish
local owner = redis.call('HGET', KEYS[1], 'worker')
if owner and owner ~= ARGV[1] then return {'fenced', 0, 0} end
if not owner then redis.call('HSET', KEYS[1], 'worker', ARGV[1], 'attempts', 1) end
local last, first = last_frame(KEYS[2]), tonumber(ARGV[3])
local cancelled = redis.call('EXISTS', KEYS[3])
if first > last + 1 then return {'gap', last, cancelled} end
local added = false
for i = 6, #ARGV do
  local number = first + i - 6
  if number > last then
    redis.call('XADD', KEYS[2], number .. '-0', 'json', ARGV[i])
    added = true
  end
end
if ARGV[4] ~= '' then redis.call('HSETNX', KEYS[1], 'ttft_ms', ARGV[4]) end
redis.call('EXPIRE', KEYS[1], EXPIRES_S)
redis.call('EXPIRE', KEYS[2], EXPIRES_S)
if ARGV[5] ~= '' and added then
  local inbox = finish(ARGV[2])
  if inbox then
    local times = inbox == BENCH and BENCH_SERVICE or INTERACTIVE_SERVICE
    redis.call('LPUSH', times, ARGV[5])
    redis.call('LTRIM', times, 0, SERVICE_SAMPLES - 1)
  end
end
return {'ok', math.max(last, first + #ARGV - 6), cancelled}
