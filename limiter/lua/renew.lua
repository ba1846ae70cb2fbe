-- renew.lua: one process's heartbeat: it extends the leases and keeps the waiters alive.
-- KEYS   gate leases holders queue waiters alive
-- ARGV   limit rate burst process alive_us, then for each permit: id fence term_us(and its cost)
-- REPLY  {now_us, wake_us, grants, made_us, then for each: 1 held | 0 lost}
--
-- A permit that the server does not know was lost with its data: its holder's own clock runs
-- out before the lease does, so it never renews an expired one. The permit is restored if there
-- is room, and lost if others have the room by now, or if it was revoked. Permits with a cost come first.
-- A full Redis refuses a script's first write if it needs memory, and none after one that does not.
-- So this begins with one that never needs any: a renewal must not fail then.
redis.call('ZREMRANGEBYSCORE', ALIVE, '-inf', '-inf')
local _, _, first = each_permit()()
if first and string.find(first, ' ', 1, true) then redis.call('HSET', GATE, 'more', 1, 'weighs', 1) end
-- include: line.lua
expire()
call('ZREMRANGEBYSCORE', ALIVE, '-inf', now)
call('ZADD', ALIVE, now + ALIVE_US, PROCESS)
local reply, readmitted, lost = { now, 0, '', gate.made }, 0, 0
for id, fence, term in each_permit() do
  local known = fence_of(id)
  local held, units, full, cost = known == fence, 1, 1, nil
  if gate.weighing then
    term, cost = gate.weighing.split(term)
    units, full = gate.weighing.units(cost)
  end
  if not known and gate.live + units <= gate.limit
    and not string.find(call('HGET', GATE, 'revoked') or '', ' ' .. fence .. ':', 1, true) then
    leave({ id }) -- it may have asked again meanwhile: nobody holds and waits at once
    gate.fence = math.max(gate.fence, fence)
    held, readmitted, gate.live = true, readmitted + 1, gate.live + 1
  end
  if held and gate.weighing then gate.weighing.hold(id, full) end
  if held then call('ZADD', LEASES, now + term, id) else lost = lost + 1 end
  if held and not known then call('HSET', HOLDERS, id, format('%s|%s|%d', fence, PROCESS, now)) end
  reply[#reply + 1] = held and 1 or 0
end
if readmitted > 0 then call('HSET', GATE, 'fence', gate.fence) end
count('readmitted', readmitted)
count('lost', lost)
hand_over()
reply[2], reply[3] = settle(), own
return reply
