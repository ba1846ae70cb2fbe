-- renew_slots.lua: the leases of a process's slots are renewed, each up to `longest` after its grant.
-- KEYS   root
-- ARGV   for each slot: id fence
-- REPLY  {version, lease_ms, then for each slot: state(0 it continues, 1 late: only under this version
--        may its group be trained on, 2 lost)}
-- include: whole.lua
-- A holder renews at the pace of the lease that it knows. When the setting became shorter, this
-- renewal is for the old one, and tells the new one.
-- A full Redis refuses a script's first write if it needs memory, and none after one that does not.
-- So this begins with one that never needs any: a renewal must not fail then.
redis.call('ZREMRANGEBYSCORE', at('slots'), '-inf', '-inf')
local reply = {policy and policy.version or -1, terms and terms.slot_lease_ms or 0}
for id, fence in each_slot() do
  local slot = redis.call('HMGET', slot_of(id), 'fence', 'granted', 'gid', 'start', 'counts', 'lease')
  local state = 2
  if policy and slot[1] == fence then
    local start = slot[5] == '1' and slot[4] or redis.call('HGET', meta_of(slot[3]), 'start') or slot[4]
    state = policy.version - start >= policy.max_age and 1 or 0
    local longest = slot[2] + policy.longest_ms
    local lease = math.max(policy.slot_lease_ms, tonumber(slot[6]) or policy.slot_lease_ms)
    redis.call('ZADD', at('slots'), 'XX', math.min(now + lease, longest), id)
    if tonumber(slot[6]) ~= policy.slot_lease_ms then
      redis.call('HSET', slot_of(id), 'lease', policy.slot_lease_ms)
    end
  end
  reply[#reply + 1] = state
end
return reply
