-- remove.lua: delete a gate that nobody uses, with all its keys: at once, since
-- a living process may make it again right after.
-- KEYS   gate leases holders queue waiters alive changes costs order weights
-- ARGV   force(1: also if it is in use, or if a key of it holds another type)
-- REPLY  {permits in flight, waiters}, 0 with force: if there are any, nothing was removed
local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local in_flight, waiting = 0, 0
if FORCE == '0' then
  in_flight = call('ZCOUNT', LEASES, now, '+inf')
  if call('ZCOUNT', ALIVE, now, '+inf') > 0 then waiting = call('ZCARD', QUEUE) + call('ZCARD', ORDER) end
end
if in_flight + waiting == 0 then
  local lanes = redis.pcall('HGET', GATE, 'lanes')
  for lane in string.gmatch(type(lanes) == 'string' and lanes or '', '%S+') do -- in which shares waited
    call('DEL', GATE .. ':shares:' .. lane, GATE .. ':idle:' .. lane)
  end
  call('DEL', GATE, LEASES, HOLDERS, QUEUE, WAITERS, ALIVE, CHANGES, COSTS, ORDER, WEIGHTS)
end
return { in_flight, waiting }
