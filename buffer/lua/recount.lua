-- recount.lua: after a change of the settings, open groups that have enough by now are finished.
-- KEYS   root
-- ARGV   cursor(0 at first)
-- REPLY  the next cursor; 0 when all were looked at
-- include: slots.lua
return whole(function()
  local page = redis.call('ZSCAN', at('open'), CURSOR, 'COUNT', 200)
  if set.custom == 1 then return '0' end
  for i = 1, #page[2], 2 do
    local gid = page[2][i]
    local n = redis.call('HGET', meta_of(gid), 'n')
    if n and tonumber(n) >= set.finish_at then make_ready(gid, 'count') end
  end
  return page[1]
end)
