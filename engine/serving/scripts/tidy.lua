-- Drops what nothing will ever finish: places and shares of requests whose entry is gone, what waits for a
-- worker that has been away for too long, names of workers without a heartbeat, consumers unused for a day.
-- Returns how many things it dropped.
--#include finish
local function entry_exists(id)
  local inbox, entry = place(id)
  if inbox == HELD then return redis.call('EXISTS', HELD_REQUEST .. id) == 1 end
  return #redis.call('XRANGE', inbox, entry, entry) > 0
end
local function consumers(inbox)
  local found = redis.pcall('XINFO', 'CONSUMERS', inbox, GROUP)
  return found.err and {} or found
end
local dropped = 0
for _, id in ipairs(redis.call('HKEYS', ENTRIES)) do
  if not entry_exists(id) then
    redis.call('HDEL', ENTRIES, id)
    dropped = dropped + 1
  end
end
for _, id in ipairs(redis.call('HKEYS', SHARES)) do
  if redis.call('HEXISTS', ENTRIES, id) == 0 then leave_shares(id) end
end
for _, id in ipairs(redis.call('ZRANGE', WAITING, 0, -1)) do
  if redis.call('HEXISTS', ENTRIES, id) == 0 then
    dropped = dropped + redis.call('ZREM', WAITING, id)
  end
end
local oldest = redis.call('TIME')[1] - EXPIRES_S
for _, name in ipairs(redis.call('SMEMBERS', WORKERS)) do
  if redis.call('EXISTS', WORKER .. name) == 0 then
    local own = WORKER_INBOX .. name
    for _, entry in ipairs(redis.call('XRANGE', own, '-', oldest .. '000')) do
      finish(entry[2][2])
      redis.call('XDEL', own, entry[1])
      dropped = dropped + 1
    end
    if redis.call('XLEN', own) == 0 then
      redis.call('DEL', own)
      dropped = dropped + redis.call('SREM', WORKERS, name)
    end
  end
end
for _, inbox in ipairs(INBOXES) do
  for _, info in ipairs(consumers(inbox)) do
    local consumer = {}
    for i = 1, #info, 2 do consumer[info[i]] = info[i + 1] end
    if consumer['pending'] == 0 and consumer['idle'] > CONSUMER_IDLE_MS then
      redis.call('XGROUP', 'DELCONSUMER', inbox, GROUP, consumer['name'])
      dropped = dropped + 1
    end
  end
end
return dropped
