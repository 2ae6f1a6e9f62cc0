-- ARGV pairs of a worker's name and the connection that it held. Their processes have ended: what they had in
-- hand is anyone's now, and they are off the list. One that has renewed its connection is left alone.
-- The attempt counts: a request that kills its workers is refused in the end.
local buried = 0
for i = 1, #ARGV, 2 do
  local name = ARGV[i]
  if redis.call('HGET', WORKER .. name, 'connection') == ARGV[i + 1] then
    redis.call('DEL', WORKER .. name)
    for _, inbox in ipairs({WORKER_INBOX .. name, INTERACTIVE, BENCH}) do
      local pending = redis.pcall('XPENDING', inbox, GROUP, '-', '+', 16, name)
      if not pending.err then
        for _, entry in ipairs(pending) do
          redis.call('XCLAIM', inbox, GROUP, RELEASED, 0, entry[1], 'IDLE', FOREVER_MS, 'JUSTID')
        end
      end
    end
    buried = buried + 1
  end
end
return buried
