-- status.lua: everything an operator wants to know of a gate. It also ends what has expired.
-- Its form `existing`, for one who only looks, makes no gate that is not there.
-- KEYS   gate leases holders queue waiters alive
-- ARGV   limit rate burst process
-- REPLY  {now_us, wake_us, grants, in_flight, waiting, since_us of the oldest waiter or 0, tokens,
--         {field, value, …} of the gate, {id, expiry_us, holder, …} of up to 100 leases,
--         {field, value, …} of the latest change, of a gate that adapts,
--         {weight of other shares, shares that wait, {share, waiters, its weight or ''} of up to 100 that
--         wait and up to 100 with a weight}, of a gate with shares}, {} if it is not there
if redis.call('HEXISTS', GATE, 'limit') == 0 then return {} end -- if existing
-- A full Redis refuses a script's first write if it needs memory, and none after one that does not.
redis.call('ZREMRANGEBYSCORE', ALIVE, '-inf', '-inf')
-- include: line.lua
-- include: share_terms.lua
expire()
hand_over()
local wake, head, since = settle(), first_waiter(), '0'
if head then since = string.match(call('HGET', WAITERS, head) or '', '|(%d+)$') or '0' end
local first, held = call('ZRANGE', LEASES, 0, 99, 'WITHSCORES'), {}
for i = 1, #first, 2 do
  local holder = call('HGET', HOLDERS, first[i])
  if holder then -- else a script stopped as it gave this one back
    held[#held + 1] = first[i]
    held[#held + 1] = first[i + 1]
    held[#held + 1] = holder
  end
end
local latest = more and more[1] and call('XREVRANGE', GATE .. ':changes', '+', '-', 'COUNT', 1) or {}
local in_flight = gate.live - (gate.weighing and gate.weighing.extra or 0)
return { now, wake, own, in_flight, call('ZCARD', QUEUE) + (gate.sharing and call('ZCARD', GATE .. ':order') or 0), since, format('%.17g', gate.tokens),
  call('HGETALL', GATE), held, latest[1] and latest[1][2] or {},
  gate.sharing and show_shares(100) or {} }
