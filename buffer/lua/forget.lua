-- forget.lua: a fresh run of the task: drop its groups and slots, `limit` a call, then all the rest.
-- The engines still have the version that was published last; the next to publish is the trainer.
-- KEYS   root
-- ARGV   limit resets(as many as there were before this one: a copy that comes after its end drops nothing)
-- REPLY  groups and slots dropped; 0 when nothing is left but the settings and the version
-- include: group_life.lua
return whole(function()
  if (redis.call('HGET', at('config'), 'resets') or '0') ~= RESETS then return 0 end
  local dropped, left = 0, tonumber(LIMIT)

  -- Its items go, then it counts no more, then nobody finds it.
  local function drop(gid, index)
    local meta = redis.call('HMGET', meta_of(gid), 'bytes', 'start', 'counted', 'state')
    if index == 'kept' then leave_quarantine(gid) end
    local used = policy and (redis.call('ZSCORE', at('used'), gid) or redis.call('ZSCORE', at('undone'), gid))
    redis.call('UNLINK', group_of(gid), meta_of(gid), partial_of(gid))
    if not CLOSED[meta[4]] then count('bytes', -tonumber(meta[1] or '0')) end
    if used then count('used_bytes', -tonumber(meta[1] or '0')) end
    if policy and meta[3] == '1' then tally(tonumber(meta[2]), -1) end
  end

  -- Of those that were closed longer ago than they are kept, what is known may still be there.
  for _, index in ipairs({'open', 'ready', 'leased', 'kept', 'parked', 'again', 'used', 'undone', 'delivered',
    'discarded'}) do
    for _, gid in ipairs(redis.call('ZRANGE', at(index), 0, left - dropped - 1)) do
      drop(gid, index)
      redis.call('ZREM', at(index), gid)
      if policy then leave_ready(gid) end
      dropped = dropped + 1
    end
    if dropped >= left then return dropped end
  end
  for _, id in ipairs(redis.call('ZRANGE', at('slots'), 0, left - dropped - 1)) do
    local gid = redis.call('HGET', slot_of(id), 'gid')
    if gid and gid ~= '' then drop(gid) end
    drop_slot(id)
    dropped = dropped + 1
  end
  if dropped > 0 then return dropped end
  for _, receipt in ipairs(redis.call('ZRANGE', at('leases'), 0, -1)) do
    local batch = at('batch:' .. receipt)
    redis.call('UNLINK', batch, batch .. ':groups', batch .. ':discarded')
  end
  sums = {state = {}}
  if policy then
    redis.call('HDEL', at('policy'), 'trainer', 'saved', 'todo')
    redis.call('HSET', at('policy'), 'taken', 0, 'top', policy.version, 'epoch', policy.epoch + 1)
    policy.taken, outstanding, touched = 0, {}, true
  end
  for _, part in ipairs({'slots', 'starts', 'aged', 'targets', 'targeted', 'aiming', 'trained', 'dropped', 'ages', 'seen',
    'rewards', 'rounds', 'delivered', 'discarded', 'unreported', 'quarantine', 'quarantined', 'aside', 'bell', 'leases', 'changed', 'raw', 'state'}) do redis.call('UNLINK', at(part)) end
  redis.call('HINCRBY', at('config'), 'resets', 1)
  return 0
end)
