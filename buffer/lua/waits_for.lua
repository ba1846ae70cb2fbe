-- waits_for.lua: the slots whose groups began first, or have the first targets: they hold takes back.
-- KEYS   root
-- ARGV   most
-- REPLY  for each: id owner gid start
-- include: whole.lua
local found, reply = {}, {}
for _, id in ipairs(redis.call('ZRANGE', at('slots'), 0, 999)) do
  local slot = redis.call('HMGET', slot_of(id), 'owner', 'gid', 'start', 'counts')
  if slot[1] then
    local group = redis.call('HMGET', meta_of(slot[2]), 'start', 'target')
    local start = slot[4] ~= '1' and group[1] or slot[3]
    local before = policy and policy.order == 'batch' and group[2] or start
    found[#found + 1] = {id, slot[1], slot[2], tonumber(start), before = tonumber(before)}
  end
end
table.sort(found, function(one, other)
  return one.before < other.before or one.before == other.before and one[1] < other[1]
end)
for n = 1, math.min(#found, tonumber(MOST)) do
  for _, part in ipairs(found[n]) do reply[#reply + 1] = part end
end
return reply
