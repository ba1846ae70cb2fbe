-- write.lua: put items into their groups; what is full, late or known is answered, not stored.
-- KEYS   root
-- ARGV   rollout(digest or empty), then group by group id_json id round slot fence lowest highest n
--        and n items, each uid reward payload. Slot and fence are empty without a slot; lowest and
--        highest are the versions that the items report, or empty.
-- REPLY  {wait_ms, one code per item: 1 stored 2 repeated 3 late 4 surplus 5 full 6 lost(its slot
--        is over) 7 unpublished(of a version that no trainer published) 8 foreign(its slot makes
--        a group of another instance)}
-- include: due.lua
-- include: next_due.lua
-- include: idle.lua
-- include: making.lua
-- include: rewards.lua
-- include: seen.lua
-- include: put.lua
-- include: keep.lua
local codes, tally_of, i = {}, {0, 0, 0, 0, 0, 0, 0, 0}, REST
if ROLLOUT ~= '' and redis.call('HGET', at('rollout'), 'digest') ~= ROLLOUT then
  return redis.error_reply('STALE rollout')
end

local function write_down(group, id_json, lowest)
  if not next(group.put) and not group.corrected then return end
  if not (group.known or group.slot or group.fence or group.counted) then unplaced = group.gid end
  if policy then stand(group, tonumber(lowest)) end
  keep(group, id_json)
end

return whole(function()
  wake()
  do_due(4)
  while i <= #ARGV do
    local id_json, id, round, slot, fence, lowest, highest, n = unpack(ARGV, i, i + 7)
    local after, group = i + 8 + 3 * n
    if policy and slot ~= '' then
      group = group_of_slot(slot, fence, id_json, id, round)
    else
      group = place(id, round)
    end
    local unpublished = policy and highest ~= '' and tonumber(highest) > policy.top
    for item = i + 8, after - 1, 3 do
      local uid, reward, payload = unpack(ARGV, item, item + 2)
      local code = unpublished and 7 or put(group, uid, reward, payload)
      while code == 0 do
        write_down(group, id_json, lowest)
        group = next_round(group)
        code = put(group, uid, reward, payload)
      end
      codes[#codes + 1], tally_of[code] = code, tally_of[code] + 1
      if code == 3 or code == 4 or code == 6 then set_aside(group.gid, code, uid, payload) end
    end
    write_down(group, id_json, lowest)
    i = after
  end
  for code, name in ipairs({'stored', 'repeated', 'late', 'surplus', 'full', 'late', 'unpublished', 'foreign'}) do
    count(name, tally_of[code])
  end
  table.insert(codes, 1, tally_of[5] > 0 and next_due() or 0)
  return codes
end)
