-- park.lua: an interrupted generator stores what it has of its items; the next slot of the group
-- gets it. An item that is parked again replaces what was parked of it, unless its segment is older.
-- KEYS   root
-- ARGV   slot fence go_on(1: the slot continues), then for each item: id_json id round uid segment
--        lowest highest payload
-- REPLY  items parked, 0 if this is a repeat; -1 when the slot is over, -2 when an item is of a version
--        never published, -3 when one is of another instance than the slot's
-- include: slot_group.lua
return whole(function()
  local group, parked, sent = nil, 0, {FENCE}
  for _, _, _, uid, segment, _, highest in each_item() do
    if policy and highest ~= '' and tonumber(highest) > policy.top then return -2 end
    sent[#sent + 1] = segment .. ' ' .. uid
  end
  local last = table.concat(sent, ' ')
  if GO_ON == '0' and redis.call('GET', at('parked:' .. SLOT)) == last then return 0 end
  for id_json, id, round, uid, segment, lowest, _, payload in each_item() do
    if policy then group = group_of_slot(SLOT, FENCE, id_json, id, round) end
    if not group or not group.maker then
      return group and group.foreign and -3 or -1
    end
    local kept = segment .. ' ' .. payload
    local had = redis.call('HGET', partial_of(group.gid), uid)
    local stored = redis.call('HEXISTS', group_of(group.gid), uid) == 1
    if not stored and not (had and tonumber(string.match(had, '^%d+')) > tonumber(segment)) then
      stand(group, tonumber(lowest))
      group.added = #kept - (had and #had or 0)
      redis.call('HSET', partial_of(group.gid), uid, kept)
      redis.call('HSET', meta_of(group.gid), 'bytes', group.bytes + group.added,
        'start', group.start, 'counted', 1)
      count('bytes', group.added)
      if group.stood then
        group.stood()
        hush_maker(group)
      end
      parked = parked + 1
    end
  end
  if group then redis.call('PEXPIRE', partial_of(group.gid), set.idle_ttl_ms) end
  count('parked', parked)
  if GO_ON == '0' and policy and redis.call('HGET', slot_of(SLOT), 'fence') == FENCE then
    end_slot(SLOT, 'back')
    redis.call('SET', at('parked:' .. SLOT), last, 'PX', policy.slot_lease_ms) -- for a repeat
  end
  return parked
end)
