-- end_slot.lua: slots end before their groups have their items.
-- KEYS   root
-- ARGV   how(back: another is to make the group; done: no more items come), then for each slot: id fence
-- REPLY  how many ended now
-- include: slots.lua
return whole(function()
  local ended = 0
  if not policy then return 0 end
  for id, fence in each_slot() do
    if redis.call('HGET', slot_of(id), 'fence') == fence then
      end_slot(id, HOW)
      ended = ended + 1
    end
  end
  return ended
end)
