-- group_of_item.lua: which group an item belongs to, and whether that group takes it.
-- include: room.lua
local closed_before

local function load_room()
  if room then return end
  count_room()
  closed_before = redis.call('EXISTS', at('delivered'), at('discarded')) > 0
end

local function look(id, round)
  local gid = id .. ':' .. round
  local meta, made
  if policy then
    meta = redis.call('HMGET', meta_of(gid), 'state', 'n', 'bytes', 'mark', 'closed', 'reward_sum', 'rewarded',
      'fence')
    if meta[1] or meta[3] or meta[8] then made = redis.call('HMGET', meta_of(gid), 'start', 'counted', 'slot') end
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

local function round_of(id, number)
  local group = look(id, number)
  group.id, group.number = id, number
  group.full = not group.closed and no_room(not group.known)
  return group
end

-- Above it one more is no other number.
local LAST_ROUND = 2 ^ 53 - 1

local function next_round(group)
  local number = string.format('%d', group.number + 1)
  redis.call('HSET', at('rounds'), group.id, number)
  local following = round_of(group.id, number)
  following.before = group.gid
  following.follows = tonumber(number) < LAST_ROUND
  return following
end

local function is_past(closed) return closed and now - closed > set.late_ms end

-- The group of this round. Without one, that of the newest; what is new may be for the next (`moves_on`).
local function place(id, round)
  load_room()
  local current = redis.call('HGET', at('rounds'), id) or '0'
  local group = round_of(id, round ~= '' and round or current)
  if round == '' then
    group.follows = tonumber(group.number) < LAST_ROUND
    if group.follows and is_past(group.closed) then return next_round(group) end
    if current ~= '0' then group.before = string.format('%s:%d', id, current - 1) end
  elseif tonumber(round) > tonumber(current) then
    redis.call('HSET', at('rounds'), id, round)
  end
  return group
end

-- Whether the item is a repeat of one in the round before, which was complete when this one began.
local function was_before(group, uid)
  if not group.before or redis.call('HEXISTS', group_of(group.before), uid) == 0 then return false end
  return not is_past(tonumber(redis.call('HGET', meta_of(group.before), 'closed') or ''))
end

-- Whether an item that a group does not know is the next round's: at once, if the group has all its
-- items. A custom is_valid_group may want more of an open group, but only once it has seen these.
local function moves_on(group)
  if not group.follows or group.n < set.group_size then return false end
  return group.closed or group.state == 'ready' or set.custom ~= 1 or next(group.put)
    or redis.call('ZSCORE', at('changed'), group.gid)
end
