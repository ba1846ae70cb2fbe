-- expire.lua: a lease that is over has its permit returned, by whichever script of the gate looks next.

-- At most a thousand, to keep the call short; the rest counts as held until the next call.
local function expire()
  gate.live = call('ZCARD', LEASES)
  if gate.live == 0 then return end
  local dead = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 1000)
  free(dead)
  count('expired', #dead)
  gate.live = gate.live - #dead
  gate.live = gate.live + extra_units() -- if full
end
