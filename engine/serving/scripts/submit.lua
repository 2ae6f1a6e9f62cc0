-- KEYS inbox; ARGV id, json, limit, how many places of it are kept for shares with nothing in the queue, score
-- offset, then for each fair share, the outermost first, its name, how many of it may be in the inbox, and
-- how many more of it may wait outside.
-- Returns {'queued'|'known', place}, {'full', length} or {'crowded', how many of the share there are}.
--#include fair_share
local id, limit = ARGV[1], tonumber(ARGV[3])
if redis.call('HEXISTS', ENTRIES, id) == 1 or redis.call('EXISTS', OUT .. id) == 1 then
  return {'known', (redis.call('ZRANK', WAITING, id) or -1) + 1}
end
local shares = {}
for i = 6, #ARGV, 3 do
  local of = {share = ARGV[i], width = tonumber(ARGV[i + 1])}
  advance(of.share)
  local length = redis.call('LLEN', SHARE .. of.share)
  if length >= of.width + tonumber(ARGV[i + 2]) then return {'crowded', length} end
  if i == 6 and length > 0 then limit = limit - tonumber(ARGV[4]) end
  table.insert(shares, of)
end
-- Those held outside take no room from whoever may enter: else one visitor's requests close it to everybody.
local waits = not has_room(shares)
local length = waits and redis.call('ZCOUNT', WAITING, HELD_OFFSET, '(' .. BENCH_OFFSET)
  or redis.call('XLEN', KEYS[1])
if length >= limit then
  return {'full', length}
end
local lines = {}
for _, of in ipairs(shares) do
  redis.call('RPUSH', SHARE .. of.share, id)
  table.insert(lines, of.width .. ' ' .. of.share)
end
if #lines > 0 then redis.call('HSET', SHARES, id, table.concat(lines, '\n')) end
if waits then
  redis.call('HSET', HELD_REQUEST .. id, 'inbox', KEYS[1], 'json', ARGV[2], 'offset', ARGV[5],
    'at', now_ms())
  redis.call('HSET', ENTRIES, id, HELD .. ' ' .. HELD)
  rank_at(id, HELD_OFFSET)
else
  enter(KEYS[1], id, ARGV[2], tonumber(ARGV[5]), now_ms())
end
return {'queued', redis.call('ZRANK', WAITING, id) + 1}
