-- Milliseconds since 1970 by the clock of Redis, the only one that all processes share.
local function now_ms()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end
