local function place(id)
  local where = redis.call('HGET', ENTRIES, id)
  if where then return string.match(where, '^(.+) (%S+)$') end
end
