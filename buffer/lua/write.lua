-- write.lua: put items into their groups; what is full, late or known is answered, not stored.
-- KEYS   root
-- ARGV   rollout (digest or empty), then for each group: id_json id round n, then for each of its n items: uid reward payload
-- REPLY  {wait_ms, one code per item: 1 stored 2 repeated 3 late 4 surplus 5 full}
-- include: due.lua
-- include: next_due.lua
-- include: idle.lua
-- include: place.lua
-- include: rewards.lua
-- include: seen.lua
-- include: put.lua
-- include: keep.lua
local codes, tally, added, i = {}, {0, 0, 0, 0, 0}, 0, 2
if ARGV[1] ~= '' and redis.call('HGET', at('rollout'), 'digest') ~= ARGV[1] then
  return redis.error_reply('STALE rollout')
end

wake()
do_due(4)
while i <= #ARGV do
  local group, n = place(ARGV[i + 1], ARGV[i + 2]), tonumber(ARGV[i + 3])
  for item = i + 4, i + 1 + 3 * n, 3 do
    local code = put(group, ARGV[item], ARGV[item + 1], ARGV[item + 2])
    codes[#codes + 1], tally[code] = code, tally[code] + 1
    if code == 3 or code == 4 then set_aside(group.gid, code, ARGV[item], ARGV[item + 2]) end
  end
  if group.added > 0 then keep(group, ARGV[i]) end
  added = added + group.added
  i = i + 4 + 3 * n
end
save_seen()
save_rewards()
count('bytes', added)
for code, name in ipairs({'stored', 'repeated', 'late', 'surplus', 'full'}) do
  count(name, tally[code])
end
table.insert(codes, 1, tally[5] > 0 and next_due() or 0)
return codes
