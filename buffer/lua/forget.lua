-- forget.lua: a fresh run of the task: drop its groups and slots, `limit` a call, then all the rest.
-- The engines still have the version that was published last; the next to publish is the trainer.
-- KEYS   root
-- ARGV   limit
-- REPLY  groups and slots dropped; 0 when nothing is left but the settings and the version
-- include: policy.lua
local dropped, left = 0, tonumber(LIMIT)
for _, index in ipairs({'open', 'ready', 'leased', 'kept', 'parked', 'again', 'used', 'undone'}) do
  for _, gid in ipairs(redis.call('ZRANGE', at(index), 0, left - dropped - 1)) do
    redis.call('ZREM', at(index), gid)
    redis.call('UNLINK', group_of(gid), meta_of(gid), partial_of(gid))
    dropped = dropped + 1
  end
  if dropped >= left then return dropped end
end
for _, id in ipairs(redis.call('ZRANGE', at('slots'), 0, left - dropped - 1)) do
  local gid = redis.call('HGET', slot_of(id), 'gid')
  if gid and gid ~= '' then redis.call('UNLINK', group_of(gid), meta_of(gid), partial_of(gid)) end
  redis.call('ZREM', at('slots'), id)
  redis.call('UNLINK', slot_of(id))
  dropped = dropped + 1
end
if dropped > 0 then return dropped end
for _, receipt in ipairs(redis.call('ZRANGE', at('leases'), 0, -1)) do
  local batch = at('batch:' .. receipt)
  redis.call('UNLINK', batch, batch .. ':groups', batch .. ':discarded')
end
if policy then
  redis.call('HDEL', at('policy'), 'trainer', 'saved', 'todo')
  redis.call('HSET', at('policy'), 'taken', 0, 'top', policy.version, 'epoch', policy.epoch + 1)
  policy.taken, outstanding, touched.taken = 0, {}, true
end
for _, part in ipairs({'slots', 'starts', 'aged', 'targets', 'targeted', 'aiming', 'trained', 'dropped', 'ages', 'seen',
  'rewards', 'rounds', 'delivered', 'discarded', 'unreported', 'quarantine', 'quarantined', 'aside', 'bell', 'leases', 'changed', 'raw', 'state'}) do redis.call('UNLINK', at(part)) end
save_policy()
return 0
