-- store.lua: puts items of one group into it, and into the next rounds that they open.
-- include: ready.lua
-- include: timeouts.lua
-- include: next_due.lua
-- include: idle.lua
-- include: group_of_item.lua
-- include: slot_group.lua if full
-- include: rewards.lua
-- include: meta_info.lua
-- include: put_item.lua
-- include: keep.lua
local codes, tally_of = {}, {0, 0, 0, 0, 0, 0, 0, 0}

local function write_down(group, id_json, lowest)
  if not next(group.put) and not group.corrected then return end
  if not (group.known or group.slot or group.fence or group.counted) then unplaced = group.gid end
  if policy then stand(group, tonumber(lowest)) end
  keep(group, id_json)
end

-- The group that `args` have from `i` on, as in write.lua; returns where the next one begins.
local function store(args, i)
  local id_json, id, round, slot, fence, lowest, highest, n = unpack(args, i, i + 7)
  local after, group = i + 8 + 3 * n
  if policy and slot ~= '' then
    group = group_of_slot(slot, fence, id_json, id, round)
  else
    group = place(id, round)
  end
  local unpublished = policy and highest ~= '' and tonumber(highest) > policy.top
  for item = i + 8, after - 1, 3 do
    local uid, reward, payload = unpack(args, item, item + 2)
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
  return after
end

local function count_stored()
  for code, name in ipairs({'stored', 'repeated', 'late', 'surplus', 'full', 'late', 'unpublished', 'foreign'}) do
    count(name, tally_of[code])
  end
end
