-- recount.lua: after a change of the settings, open groups that have enough by now are finished. The others
-- live as long as the new timeout needs.
-- KEYS   root
-- ARGV   cursor(0 at first)
-- REPLY  the next cursor; 0 when all were looked at
-- include: slots.lua
return whole(function()
  local page = redis.call('ZSCAN', at('open'), CURSOR, 'COUNT', 200)
  for i = 1, #page[2], 2 do
    local gid = page[2][i]
    local meta = redis.call('HMGET', meta_of(gid), 'n', 'state')
    if meta[1] and set.custom ~= 1 and tonumber(meta[1]) >= set.finish_at then
      make_ready(gid, 'count')
    elseif meta[2] == 'open' then
      redis.call('PEXPIRE', group_of(gid), set.open_ttl_ms)
      redis.call('PEXPIRE', meta_of(gid), set.open_ttl_ms + set.idle_ttl_ms)
    end
  end
  return page[1]
end)
