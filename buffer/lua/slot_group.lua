-- slot_group.lua: which group a slot makes, and whether it still may.
-- include: slots.lua
-- include: group_of_item.lua
-- The round of the instance that a slot may have: the one asked for, or the next that nobody
-- makes and that lacks items. Nothing when the one asked for is closed, whole, or another slot's.
local function free_round(id, round)
  local current = tonumber(redis.call('HGET', at('rounds'), id) or '0')
  local number = tonumber(round) or current
  local group = look(id, string.format('%d', number))
  if group.closed or group.slot or group.state == 'ready' or group.n >= math.max(1, set.finish_at) then
    if round ~= '' then return nil end
    number = number + 1
  end
  if number > current then redis.call('HSET', at('rounds'), id, string.format('%d', number)) end
  return string.format('%d', number)
end

-- The slot makes this group, which waits for no other. If the group is outstanding itself, the
-- slot is not.
local function bind(slot, gid, id_json)
  local meta = redis.call('HMGET', meta_of(gid), 'counted', 'start', 'attempt', 'emptied')
  if meta[4] then empty(gid) end
  slot.gid, slot.attempt = gid, meta[3] or 1
  local stands = meta[1] == '1' and slot.counts
  local before = slot.start
  if stands then slot.start, slot.counts = tonumber(meta[2]), false end
  redis.call('HSET', slot_of(slot.id), 'gid', gid, 'id', id_json, 'start', slot.start,
    'counts', slot.counts and 1 or 0, 'attempt', slot.attempt)
  if stands then tally(before, -1) end
  redis.call('HSET', meta_of(gid), 'id', id_json, 'slot', slot.id, 'fence', slot.fence,
    'began', slot.granted, 'attempt', slot.attempt)
  aim(gid)
  redis.call('PERSIST', meta_of(gid))
  if meta[3] then leave_queues(gid) end -- a slot had it before
end

-- The slot, if its lease lasts; with its first item it is bound to a group.
local function live_slot(slot_id, fence, id_json, id, round)
  local found = redis.call('HMGET', slot_of(slot_id), 'fence', 'gid', 'start', 'counts', 'granted')
  if not found[1] or found[1] ~= fence then return nil end
  local slot = {id = slot_id, fence = fence, gid = found[2], start = tonumber(found[3]),
    counts = found[4] == '1', granted = found[5]}
  if slot.gid == '' then
    local number = free_round(id, round)
    if not number then return nil end
    bind(slot, id .. ':' .. number, id_json)
  end
  return slot
end

-- The group for items that come under a slot. They are lost when the slot is over and its group
-- another's; when the slot is over because the group has its items, they are surplus.
local function group_of_slot(slot_id, fence, id_json, id, round)
  load_room()
  local slot = live_slot(slot_id, fence, id_json, id, round)
  if slot and instance_of(slot.gid) ~= id then return {foreign = true, put = {}, added = 0} end
  local group = slot and look(id, string.match(slot.gid, '%d+$'))
  if not group or group.slot ~= slot_id then
    group = place(id, round)
    group.lost, group.follows = group.fence ~= fence, nil
    return group
  end
  group.maker = slot
  group.parks = redis.call('EXISTS', partial_of(slot.gid)) == 1
  group.full = not group.closed and no_room(false) -- it had room when the slot was granted
  return group
end

-- The slot of a group that gets items of others.
local function maker_of(id)
  local slot = redis.call('HMGET', slot_of(id), 'start', 'counts')
  return slot[1] and {id = id, start = tonumber(slot[1]), counts = slot[2] == '1'}
end

-- A group with items is outstanding itself, in place of its slot; its start is never later than
-- what its items report. The caller writes `start` and `counted` down, and calls `stood` then.
local function stand(group, lowest)
  local maker = group.maker or group.counted ~= '1' and group.slot and maker_of(group.slot)
  local start = group.start or maker and maker.start or policy.version
  start = math.min(start, lowest or start)
  if group.counted == '1' and start == group.start then return end
  local before = group.counted == '1' and group.start
  function group.stood()
    if before then tally(before, -1) end
    tally(start, 1)
  end
  group.counter = not before and maker and maker.counts and maker
  aim(group.gid)
  group.start, group.counted = start, '1'
  group.assumed = (group.maker or group.slot) and '0' or '1'
end

-- Its slot does not count any more.
local function hush_maker(group)
  if not group.counter then return end
  redis.call('HSET', slot_of(group.counter.id), 'counts', 0)
  tally(group.counter.start, -1)
end

-- A ready group whose start changed.
local function restand(group)
  hush_maker(group)
  stand_ready(group.gid, group.start, redis.call('HGET', meta_of(group.gid), 'finished'))
end

-- An item takes the room of its part: else a buffer full of parked items could never take one.
local function is_parked(group, uid) return redis.call('HEXISTS', partial_of(group.gid), uid) == 1 end

-- What was parked of an item that is whole now goes when the item is stored.
local function replace_part(group, uid)
  local had = redis.call('HGET', partial_of(group.gid), uid)
  if not had then return end
  group.parts = group.parts or {}
  group.parts[#group.parts + 1] = uid
  group.added = group.added - #had
end

local function forget_parts(group)
  redis.call('HDEL', partial_of(group.gid), unpack(group.parts))
end
