-- slots.lua: how a slot ends before its group has its items, and what happens to what is too old.
-- include: life.lua
-- The same prompt is to be made again from its beginning, until it was tried `attempts` times:
-- under `wait`, which discards nothing, as often as it takes.
local function make_again(gid, tried)
  local meta = redis.call('HMGET', meta_of(gid), 'attempt', 'bytes', 'n', 'began')
  local attempt = tonumber(meta[1] or '1') + tried
  if attempt > policy.attempts and policy.when_old ~= 'wait' then return discard(gid, 'stale') end
  leave_outstanding(gid)
  redis.call('ZADD', at('again'), now, gid) -- before it is nowhere else
  for _, index in ipairs({'open', 'changed', 'ready', 'leased'}) do
    redis.call('ZREM', at(index), gid)
  end
  redis.call('UNLINK', group_of(gid))
  redis.call('HDEL', meta_of(gid), 'state', 'n', 'bytes', 'start', 'mark', 'why', 'finished', 'closed',
    'reward_sum', 'rewarded')
  redis.call('HSET', meta_of(gid), 'attempt', attempt)
  redis.call('PERSIST', meta_of(gid))
  anyone_waits = true
  count('bytes', -tonumber(meta[2] or '0'))
  count('again', 1)
  if meta[4] then
    count('dropped_ms', math.max(0, now - meta[4]))
    count('dropped_timed', 1)
  end
  count('again_items', tonumber(meta[3] or '0'))
  touched.taken = true -- those who wait for slots are called
end

-- An open group that nobody makes waits for the next slot, with all that it has.
local function park_group(gid, start)
  redis.call('ZADD', at('parked'), start, gid)
  anyone_waits = true
  redis.call('PERSIST', meta_of(gid))
  redis.call('PERSIST', group_of(gid))
  touched.taken = true
end

local ripened = 0 -- by this script

ripen = function(gid)
  local meta = redis.call('HMGET', meta_of(gid), 'assumed', 'id')
  ripened = ripened + 1
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
  if not gid then return end
  drop_slot(id)
  count('slots_' .. how, 1)
  ring_late = true
  if gid == '' then return end
  local group = redis.call('HMGET', meta_of(gid), 'slot', 'counted', 'start')
  if group[1] ~= id then return end
  redis.call('HDEL', meta_of(gid), 'slot', 'fence')
  if how == 'old' then return ripen(gid) end
  if group[2] ~= '1' then -- it has no item yet, nor a parked one
    if how == 'done' then
      lose_aim(gid)
      return redis.call('UNLINK', meta_of(gid))
    end
    return make_again(gid, how == 'back' and 0 or 1)
  end
  if how == 'done' and redis.call('EXISTS', partial_of(gid)) == 0 then return end
  park_group(gid, tonumber(group[3]))
end
