-- making.lua: which group a slot makes, and whether it still may.
-- include: slots.lua
-- include: place.lua
-- The round of the instance that a slot may have: the one asked for, or the next that nobody
-- makes and no trainer has. Nothing when the one asked for is closed, or another slot's.
local function free_round(id, round)
  local current = tonumber(redis.call('HGET', at('rounds'), id) or '0')
  local number = tonumber(round) or current
  local group = look(id, string.format('%d', number))
  if group.closed or group.slot or group.state == 'ready' then
    if round ~= '' then return nil end
    number = number + 1
  end
  if number > current then redis.call('HSET', at('rounds'), id, string.format('%d', number)) end
  return string.format('%d', number)
end

local function bind(slot, gid, id_json)
  slot.gid = gid
  redis.call('HSET', slot_of(slot.id), 'gid', gid, 'id', id_json)
  redis.call('HSET', meta_of(gid), 'id', id_json, 'slot', slot.id, 'fence', slot.fence,
    'began', slot.granted, 'attempt', slot.attempt)
  redis.call('PERSIST', meta_of(gid))
end

-- The slot, if its lease goes on and it makes a group of this instance; with its first item it
-- is bound to one.
local function live_slot(slot_id, fence, id_json, id, round)
  local found = redis.call('HMGET', slot_of(slot_id), 'fence', 'gid', 'start', 'counts', 'granted', 'attempt')
  if not found[1] or found[1] ~= fence then return nil end
  local slot = {id = slot_id, fence = fence, gid = found[2], start = tonumber(found[3]),
    counts = found[4] == '1', granted = found[5], attempt = found[6]}
  if slot.gid == '' then
    local number = free_round(id, round)
    if not number then return nil end
    bind(slot, id .. ':' .. number, id_json)
  end
  return instance_of(slot.gid) == id and slot or nil
end

-- The group for items that come under a slot. They are lost when the slot is over and its group
-- another's; when the slot is over because the group has its items, the group takes more.
local function group_of_slot(slot_id, fence, id_json, id, round)
  load_room()
  local slot = live_slot(slot_id, fence, id_json, id, round)
  if not slot then
    local group = place(id, round)
    group.lost = group.fence ~= fence
    return group
  end
  local group = look(id, string.match(slot.gid, '%d+$'))
  group.maker = slot
  group.parks = redis.call('EXISTS', partial_of(slot.gid)) == 1
  group.full = not group.closed and no_room(not group.known)
  return group
end

-- A group with items is outstanding itself, in place of its slot; its start is never later than
-- what its items report. The caller writes `start` and `counted` down.
local function stand(group, lowest)
  local start = group.start or group.maker and group.maker.start or policy.version
  start = math.min(start, lowest or start)
  if group.counted == '1' and start == group.start then return end
  if group.counted == '1' then
    tally(group.start, -1)
  elseif group.maker and group.maker.counts then
    tally(group.maker.start, -1)
    redis.call('HSET', slot_of(group.maker.id), 'counts', 0)
  end
  tally(start, 1)
  group.start, group.counted = start, '1'
  group.assumed = (group.maker or group.slot) and 0 or 1
  if group.state == 'ready' then redis.call('ZADD', at('aged'), aged_score(start), group.gid) end
end

-- What was parked of an item that is whole now, or parked again.
local function drop_partial(group, uid)
  local had = redis.call('HGET', partial_of(group.gid), uid)
  if not had then return end
  redis.call('HDEL', partial_of(group.gid), uid)
  group.added = group.added - #had
end
