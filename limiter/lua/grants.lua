-- grants.lua: how a permit begins.
-- include: leases.lua

-- Grants are gathered, and written by `write_grants` in two commands however many there
-- are: before anybody asks `fence_of`, which reads what is written.
local leases, holders = {}, {}
local stamp

-- The fence only grows, also over a loss of data: no clock that ran forward repeats it.
local function grant(id, process, term)
  gate.fence = math.max(gate.fence + 1, now)
  if gate.rate > 0 then gate.tokens = gate.tokens - 1 end
  gate.live, gate.granted = gate.live + 1, gate.granted + 1
  stamp = stamp or format('|%.0f', now)
  local n = #leases
  leases[n + 1], leases[n + 2] = now + term, id
  holders[n + 1], holders[n + 2] = id, format('%.0f|', gate.fence) .. process .. stamp
  return gate.fence
end

local function write_grants()
  if #leases > 0 then
    call('ZADD', LEASES, unpack(leases))
    call('HSET', HOLDERS, unpack(holders))
    leases, holders = {}, {}
  end
end
