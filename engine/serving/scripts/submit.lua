-- KEYS inbox; ARGV id, json, limit, score offset, fair share or '', how many of the share may be in the inbox,
-- how many more of it may wait outside.
-- Returns {'queued'|'known', place}, {'full', length} or {'crowded', how many of the share there are}.
--#include fair_share
local id, share = ARGV[1], ARGV[5]
if redis.call('HEXISTS', ENTRIES, id) == 1 or redis.call('EXISTS', OUT .. id) == 1 then
  return {'known', (redis.call('ZRANK', WAITING, id) or -1) + 1}
end
local line, width, before = SHARE .. share, tonumber(ARGV[6]), 0
if share ~= '' then
  advance(share, width)
  before = redis.call('LLEN', line)
  if before >= width + tonumber(ARGV[7]) then
    return {'crowded', before}
  end
end
-- Those held outside take no room from whoever may enter: else one visitor's requests close it to everybody.
local waits = share ~= '' and before >= width
local length = waits and redis.call('ZCOUNT', WAITING, HELD_OFFSET, '(' .. BENCH_OFFSET)
  or redis.call('XLEN', KEYS[1])
if length >= tonumber(ARGV[3]) then
  return {'full', length}
end
if share ~= '' then
  redis.call('RPUSH', line, id)
  redis.call('HSET', SHARES, id, width .. ' ' .. share)
end
if waits then
  redis.call('HSET', HELD_REQUEST .. id, 'inbox', KEYS[1], 'json', ARGV[2], 'offset', ARGV[4])
  redis.call('HSET', ENTRIES, id, HELD .. ' ' .. HELD)
  rank_at(id, HELD_OFFSET)
else
  enter(KEYS[1], id, ARGV[2], tonumber(ARGV[4]))
end
return {'queued', redis.call('ZRANK', WAITING, id) + 1}
