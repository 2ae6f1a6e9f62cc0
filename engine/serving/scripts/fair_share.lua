-- A request may count towards shares that lie inside one another: a line "<width> <share>" of each in SHARES.
--#include clock
local function rank_at(id, offset)
  local now = redis.call('TIME')
  redis.call('ZADD', WAITING, now[1] * 1000000 + now[2] + offset, id)
end

-- `at` is when it was submitted, by the clock of Redis.
local function enter(inbox, id, json, offset, at)
  local entry = redis.call('XADD', inbox, '*', 'id', id, 'json', json, 'at', at)
  redis.call('HSET', ENTRIES, id, inbox .. ' ' .. entry)
  rank_at(id, offset)
end

local function shares_of(id)
  local found = {}
  for width, share in string.gmatch(redis.call('HGET', SHARES, id) or '', '(%d+) ([^\n]+)') do
    table.insert(found, {share = share, width = tonumber(width)})
  end
  return found
end

-- How many of a share are in an inbox or in a worker's hands.
local function entered(share)
  local count = 0
  for _, id in ipairs(redis.call('LRANGE', SHARE .. share, 0, -1)) do
    if redis.call('EXISTS', HELD_REQUEST .. id) == 0 then count = count + 1 end
  end
  return count
end

local function has_room(shares)
  for _, of in ipairs(shares) do
    if entered(of.share) >= of.width then return false end
  end
  return true
end

local function forget_shares(id, shares)
  for _, of in ipairs(shares) do redis.call('LREM', SHARE .. of.share, 0, id) end
  redis.call('HDEL', SHARES, id)
  redis.call('DEL', HELD_REQUEST .. id)
end

-- Lets into the inbox whoever of `share` may be there by now; forgets those that ended unseen.
local function advance(share)
  local line = redis.call('LRANGE', SHARE .. share, 0, -1)
  for _, id in ipairs(line) do
    if redis.call('HEXISTS', ENTRIES, id) == 0 then forget_shares(id, shares_of(id)) end
  end
  for _, id in ipairs(line) do
    local held = redis.call('HMGET', HELD_REQUEST .. id, 'inbox', 'json', 'offset', 'at')
    if held[1] and has_room(shares_of(id)) then
      redis.call('DEL', HELD_REQUEST .. id)
      enter(held[1], id, held[2], tonumber(held[3]), held[4] or now_ms())
    end
  end
end

local function leave_shares(id)
  local shares = shares_of(id)
  forget_shares(id, shares)
  for _, of in ipairs(shares) do advance(of.share) end
end
