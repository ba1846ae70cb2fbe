-- place.lua: which group an item belongs to, and whether that group takes it.
-- Room is kept by whole groups, so that an open one can always be completed.
local room, closed_before

local function load_room()
  if room then return end
  save_counts()
  room = {groups = 0, bytes = tonumber(redis.call('HGET', at('state'), 'bytes') or '0')}
  for _, index in ipairs({'open', 'ready', 'leased'}) do
    room.groups = room.groups + redis.call('ZCARD', at(index))
  end
  closed_before = redis.call('EXISTS', at('delivered'), at('discarded')) > 0
end

local function no_room(new)
  if not new then return room.bytes >= set.max_bytes * 1.25 end
  return room.bytes >= set.max_bytes or (room.groups + 1) * set.group_size > set.max_buffer_size
end

local function look(id, round)
  local gid = id .. ':' .. round
  local meta, made
  if policy then
    meta = redis.call('HMGET', meta_of(gid), 'state', 'n', 'bytes', 'mark', 'closed', 'reward_sum', 'rewarded',
      'fence')
    if meta[1] or meta[8] then made = redis.call('HMGET', meta_of(gid), 'start', 'counted', 'slot') end
  else
    meta = redis.call('HMGET', meta_of(gid), 'state', 'n', 'bytes', 'mark', 'closed', 'reward_sum', 'rewarded')
  end
  made = made or {}
  local closed = meta[5]
  if not meta[1] and closed_before then
    closed = redis.call('ZSCORE', at('delivered'), gid) or redis.call('ZSCORE', at('discarded'), gid)
  end
  local state = meta[1] or 'open'
  return {gid = gid, state = state, known = meta[1], mark = meta[4], put = {}, fields = {},
    start = tonumber(made[1] or ''), counted = made[2], slot = made[3], fence = meta[8],
    reward_sum = tonumber(meta[6] or '0'), rewarded = tonumber(meta[7] or '0'),
    n = tonumber(meta[2] or '0'), bytes = tonumber(meta[3] or '0'), added = 0,
    closed = tonumber(closed or '') or (state ~= 'open' and state ~= 'ready' and now) or nil}
end

-- Without a round, what comes well after its group was closed opens the next round.
local function place(id, round)
  load_room()
  local current = tonumber(redis.call('HGET', at('rounds'), id) or '0')
  local group = look(id, round ~= '' and round or string.format('%d', current))
  if round == '' and group.closed and now - group.closed > set.late_ms then
    round = string.format('%d', current + 1); group = look(id, round)
  end
  if round ~= '' and tonumber(round) > current then
    redis.call('HSET', at('rounds'), id, round)
  end
  group.full = not group.closed and no_room(not group.known)
  return group
end
