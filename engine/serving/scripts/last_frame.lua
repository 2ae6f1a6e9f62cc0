local function last_frame(out)
  local newest = redis.call('XREVRANGE', out, '+', '-', 'COUNT', 1)[1]
  return newest and tonumber(string.match(newest[1], '^%d+')) or 0
end
