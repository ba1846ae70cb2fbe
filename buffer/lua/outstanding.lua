-- outstanding.lua: slots that are over, and groups that are outstanding no more.
-- include: policy.lua

-- It waits for no slot any more. Mostly no group does: that is asked once a script.
local anyone_waits
local function leave_queues(gid)
  if anyone_waits == nil then anyone_waits = redis.call('EXISTS', at('parked'), at('again')) > 0 end
  if not anyone_waits then return end
  redis.call('ZREM', at('parked'), gid)
  redis.call('ZREM', at('again'), gid)
end

-- A slot is over: its group has its items, or is somebody else's to make.
local function drop_slot(id)
  local slot = redis.call('HMGET', slot_of(id), 'start', 'counts')
  if not slot[1] then return redis.call('ZREM', at('slots'), id) end
  redis.call('DEL', slot_of(id))
  if slot[2] == '1' then tally(tonumber(slot[1]), -1) end
  redis.call('ZREM', at('slots'), id)
end

-- It is no longer outstanding, and counts no more: its slot, its place by age, its parked items go.
local function leave_outstanding(gid, slot)
  if slot then drop_slot(slot) end
  leave_ready(gid)
  redis.call('UNLINK', partial_of(gid))
  redis.call('HDEL', meta_of(gid), 'slot', 'fence')
  ring_late = true
end
