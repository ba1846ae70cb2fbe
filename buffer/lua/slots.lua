-- slots.lua: how a slot ends before its group has its items, and what happens to what is too old.
-- include: group_life.lua
-- Its items go; what it had to say of them goes last.
local function empty(gid)
  local bytes = bytes_of(gid)
  redis.call('UNLINK', group_of(gid))
  redis.call('HDEL', meta_of(gid), 'state', 'n', 'bytes', 'start', 'mark', 'why', 'finished', 'closed',
    'reward_sum', 'rewarded', 'emptied')
  count('bytes', -bytes)
end

-- The same prompt is to be made again from its beginning, until it was tried `attempts` times:
-- under `wait`, which discards nothing, as often as it takes.
local function make_again(gid, tried)
  local meta = redis.call('HMGET', meta_of(gid), 'attempt', 'n', 'began', 'start', 'counted', 'slot')
  local attempt = tonumber(meta[1] or '1') + tried
  if attempt > policy.attempts and policy.when_old ~= 'wait' then return discard(gid, 'stale') end
  redis.call('ZADD', at('again'), now, gid) -- before it is nowhere else
  redis.call('HSET', meta_of(gid), 'attempt', attempt, 'emptied', 1, 'counted', 0)
  if meta[5] == '1' then tally(tonumber(meta[4]), -1) end
  redis.call('PERSIST', meta_of(gid))
  for _, index in ipairs({'parked', 'open', 'changed', 'ready', 'leased'}) do
    redis.call('ZREM', at(index), gid)
  end
  leave_outstanding(gid, meta[6])
  empty(gid)
  anyone_waits = true
  count('again', 1)
  if meta[3] then
    count('dropped_ms', math.max(0, now - meta[3]))
    count('dropped_timed', 1)
  end
  count('again_items', tonumber(meta[2] or '0'))
  touched = true -- those who wait for slots are called
end

-- An open group that nobody makes waits for the next slot, with all that it has.
local function park_group(gid, start)
  redis.call('ZADD', at('parked'), start, gid)
  anyone_waits = true
  redis.call('PERSIST', meta_of(gid))
  redis.call('PERSIST', group_of(gid))
  touched = true
end

local ended_too_old = 0 -- by this script

end_too_old = function(gid)
  local meta = redis.call('HMGET', meta_of(gid), 'assumed', 'id', 'state')
  if CLOSED[meta[3]] or meta[3] == 'leased' then -- a script stopped before it took this from here
    for _, index in ipairs({'parked', 'ready'}) do redis.call('ZREM', at(index), gid) end
    return leave_ready(gid)
  end
  ended_too_old = ended_too_old + 1
  redis.call('ZINCRBY', at('dropped'), 1, instance_of(gid))
  count('dropped_' .. policy.when_old, 1)
  if policy.when_old == 'drop' or meta[1] == '1' then return discard(gid, 'stale') end
  make_again(gid, 1)
end

-- A slot ends unfinished. `how`: `back`, the group is for another slot; `lapsed`, the same and it
-- counts as an attempt; `overdue`, the same for one that was held for too long; `done`, its
-- generator has no more items; `old`, it is past the bound.
local function end_slot(id, how)
  local gid = redis.call('HGET', slot_of(id), 'gid')
  if not gid then return redis.call('ZREM', at('slots'), id) end
  local group = gid ~= '' and redis.call('HMGET', meta_of(gid), 'slot', 'counted', 'start', 'state') or {}
  if group[1] == id and (not group[4] or group[4] == 'open') then -- it has its next place before the slot goes
    if how == 'old' then
      end_too_old(gid)
    elseif group[2] == '1' then
      if how ~= 'done' or redis.call('EXISTS', partial_of(gid)) == 1 then park_group(gid, tonumber(group[3])) end
    elseif how == 'done' then -- it has no item, nor a parked one
      lose_aim(gid)
      redis.call('UNLINK', meta_of(gid))
    else
      make_again(gid, how == 'back' and 0 or 1)
    end
    redis.call('HDEL', meta_of(gid), 'slot', 'fence')
  end
  drop_slot(id)
  count('slots_' .. how, 1)
  ring_late = true
end

-- Somebody makes it, or it waits for the next slot.
local function is_for_slots(gid)
  return redis.call('HEXISTS', meta_of(gid), 'slot') == 1 or redis.call('ZSCORE', at('parked'), gid)
end
