-- renew_slots.lua: the leases of a process's slots go on, each up to `longest` after its grant.
-- KEYS   root
-- ARGV   for each slot: id fence
-- REPLY  {version, then for each slot: state(0 it goes on, 1 late: only under this version may its
--        group be trained on, 2 lost)}
-- include: policy.lua
local reply = {policy and policy.version or -1}
for id, fence in each_slot() do
  local slot = redis.call('HMGET', slot_of(id), 'fence', 'granted', 'gid', 'start', 'counts')
  local state = 2
  if policy and slot[1] == fence then
    local start = slot[5] == '1' and slot[4] or redis.call('HGET', meta_of(slot[3]), 'start') or slot[4]
    state = policy.version - start >= policy.max_age and 1 or 0
    local longest = slot[2] + policy.longest_ms
    redis.call('ZADD', at('slots'), 'XX', math.min(now + policy.slot_lease_ms, longest), id)
  end
  reply[#reply + 1] = state
end
return reply
