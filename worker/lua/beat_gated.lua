-- beat_gated.lua: as beat.lua, and the permits of the executions go on with them.
-- KEYS   gate leases holders queue waiters alive wip leases workers
-- ARGV   limit rate burst process lease_us keep_s worker now, then for each:
--        id execution fence(of its permit, or 0) term_us
-- REPLY  for each: 1 held | 0 lost
--
-- A permit that is not there is not taken in again, as a gate's own heartbeat would: it went
-- back with the end of its execution, which this worker did not know when it wrote this.
-- include: limiter:leases.lua
local WIP, RUNNING, WORKERS, OFF = KEYS[7], KEYS[8], KEYS[9], 4
local function keep_permit(member, fence, term_us)
  if fence_of(member) == fence then call('ZADD', LEASES, now + term_us, member) end
end
-- include: beating.lua
return beat()
