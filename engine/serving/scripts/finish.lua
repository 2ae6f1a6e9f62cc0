--#include place
--#include fair_share
local function finish(id)
  local inbox, entry = place(id)
  if inbox then
    if inbox ~= HELD then
      redis.call('XACK', inbox, GROUP, entry)
      redis.call('XDEL', inbox, entry)
    end
    redis.call('HDEL', ENTRIES, id)
  end
  redis.call('ZREM', WAITING, id)
  redis.call('DEL', CANCELLED .. id)
  leave_shares(id)
  return inbox
end
