-- forget.lua: a fresh run of the task: drop its groups, `limit` a call, then all the rest.
-- KEYS   root
-- ARGV   limit
-- REPLY  groups dropped; 0 when nothing is left but the settings
-- include: policy.lua
local dropped, left = 0, tonumber(LIMIT)
for _, index in ipairs({'open', 'ready', 'leased', 'kept', 'parked', 'again', 'used'}) do
  for _, gid in ipairs(redis.call('ZRANGE', at(index), 0, left - dropped - 1)) do
    redis.call('ZREM', at(index), gid)
    redis.call('UNLINK', group_of(gid), meta_of(gid), partial_of(gid))
    dropped = dropped + 1
  end
  if dropped >= left then return dropped end
end
if dropped > 0 then return dropped end
for _, receipt in ipairs(redis.call('ZRANGE', at('leases'), 0, -1)) do
  local batch = at('batch:' .. receipt)
  redis.call('UNLINK', batch, batch .. ':groups', batch .. ':discarded')
end
for _, id in ipairs(redis.call('ZRANGE', at('slots'), 0, -1)) do redis.call('UNLINK', slot_of(id)) end
redis.call('HDEL', at('policy'), 'version') -- until a trainer has published, nobody is admitted
for _, part in ipairs({'slots', 'starts', 'aged', 'dropped', 'ages', 'seen', 'rewards', 'rounds', 'delivered', 'discarded', 'unreported',
  'quarantine', 'aside', 'bell', 'leases', 'changed', 'raw', 'state'}) do redis.call('UNLINK', at(part)) end
return 0
