-- room.lua: a buffer that is full has no room for an item.
-- Room is kept by whole groups, so that an open one can always be completed.
local room

local function count_room()
  room = {groups = 0, bytes = figure('bytes')}
  for _, index in ipairs({'open', 'ready', 'leased'}) do
    room.groups = room.groups + redis.call('ZCARD', at(index))
  end
end

local function no_room(new)
  if not new then return room.bytes >= set.max_bytes * 1.25 end
  return room.bytes >= set.max_bytes or (room.groups + 1) * set.group_size > set.max_buffer_size
end
