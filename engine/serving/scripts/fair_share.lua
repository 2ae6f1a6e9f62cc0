local function rank_at(id, offset)
  local now = redis.call('TIME')
  redis.call('ZADD', WAITING, now[1] * 1000000 + now[2] + offset, id)
end

local function enter(inbox, id, json, offset)
  local entry = redis.call('XADD', inbox, '*', 'id', id, 'json', json)
  redis.call('HSET', ENTRIES, id, inbox .. ' ' .. entry)
  rank_at(id, offset)
end

-- Lets into the inbox whoever of `share` may be there by now; forgets those that ended unseen.
local function advance(share, width)
  local line = SHARE .. share
  for _, id in ipairs(redis.call('LRANGE', line, 0, -1)) do
    if redis.call('HEXISTS', ENTRIES, id) == 0 then
      redis.call('LREM', line, 0, id)
      redis.call('HDEL', SHARES, id)
      redis.call('DEL', HELD_REQUEST .. id)
    end
  end
  for _, id in ipairs(redis.call('LRANGE', line, 0, width - 1)) do
    local held = redis.call('HMGET', HELD_REQUEST .. id, 'inbox', 'json', 'offset')
    if held[1] then
      redis.call('DEL', HELD_REQUEST .. id)
      enter(held[1], id, held[2], tonumber(held[3]))
    end
  end
end

local function leave_share(id)
  local width, share = string.match(redis.call('HGET', SHARES, id) or '', '^(%d+) (.+)$')
  if not share then return end
  redis.call('HDEL', SHARES, id)
  redis.call('DEL', HELD_REQUEST .. id)
  redis.call('LREM', SHARE .. share, 0, id)
  advance(share, tonumber(width))
end
