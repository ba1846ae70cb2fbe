-- waits_for.lua: the slots whose groups began first, which hold takes back.
-- KEYS   root
-- ARGV   most
-- REPLY  for each: id owner gid start
-- include: policy.lua
local found, reply = {}, {}
for _, id in ipairs(redis.call('ZRANGE', at('slots'), 0, 999)) do
  local slot = redis.call('HMGET', slot_of(id), 'owner', 'gid', 'start', 'counts')
  if slot[1] then
    local start = slot[4] ~= '1' and redis.call('HGET', meta_of(slot[2]), 'start') or slot[3]
    found[#found + 1] = {id, slot[1], slot[2], tonumber(start)}
  end
end
table.sort(found, function(one, other)
  return one[4] < other[4] or one[4] == other[4] and one[1] < other[1]
end)
for n = 1, math.min(#found, tonumber(MOST)) do
  for _, part in ipairs(found[n]) do reply[#reply + 1] = part end
end
return reply
