-- configure.lua: change a gate's settings, for all processes at once.
-- KEYS   gate leases holders queue waiters alive
-- ARGV   limit rate burst process, then for each change: field value
-- REPLY  {now_us, wake_us, grants, 1 | 0 too many weights: none of them is set}
--
-- The fields are limit, rate, burst, paused; and adapts ('limit', 'rate', or '' for pinned), start,
-- min, max; and of a gate with costs weighs, passing, amounts, rate:<amount>, burst:<amount>; and
-- weight:<share>, '' to forget it.
-- A raised limit lets waiters in at once; a lowered one revokes nothing.
local change, weights = {}, {}
for field, value in each_change() do
  local share = string.match(field, '^weight:(.*)$')
  if share then weights[#weights + 1] = { share, value } else change[field] = value end
end
local exists = redis.call('EXISTS', GATE) == 1
if change.adapts or (change.weighs and exists) then redis.call('HSET', GATE, 'more', 1) end
if change.adapts then redis.call('HSETNX', GATE, 'adapts', '') end
if change.weighs and exists then redis.call('HSET', GATE, 'weighs', 1) end
if #weights > 0 then redis.call('HSET', GATE, 'more', 1, 'shares', 1) end
-- include: line.lua
-- include: share_terms.lua
if change.amounts == '' and not gate.weighing then change.amounts = nil end -- it never had any
-- A gate that adapts goes on from the limit that it has. A change of that limit pins it. One command sets
-- both: a script that stopped in between would leave a limit that does not hold.
local adapts, pins = change.adapts or more and more[1] or '', false
if change[adapts] and not change.adapts then change.adapts, pins = '', true end
local set = {}
for field, value in pairs(change) do set[#set + 1], set[#set + 2] = field, value end
if #set > 0 then call('HSET', GATE, unpack(set)) end
gate.limit = tonumber(change.limit or fields[1]) or math.huge
gate.burst = tonumber(change.burst or fields[3]) or 0
if change.paused and gate.broken then
  gate.overrule(change.paused == '1')
elseif not gate.broken then
  gate.paused, gate.held = (change.paused or fields[4]) == '1', nil
end
-- A rate set where there was none starts with an empty bucket, as a new gate does.
gate.tokens = gate.rate > 0 and math.min(gate.tokens, gate.burst) or 0
gate.rate = tonumber(change.rate or fields[2]) or 0
if gate.rate > 0 and gate.burst < 1 then -- as the constructor does: the tokens of 0.1 s
  call('HSET', GATE, 'burst', math.max(1, math.ceil(gate.rate / 10)))
end

local function adapt()
  local number = tonumber(change[adapts]) -- none, if the limit was taken away
  if pins and steering and number then steering.note(number, 'pinned') end
  if pins or adapts == '' then return read_steering() end
  local stands = call('HGET', GATE, adapts)
  if not stands or stands == '' then -- it had no such limit
    stands = call('HGET', GATE, 'start')
  end
  if not steering then call('HSET', GATE, 'exact', stands) end
  call('HSET', GATE, 'adapts', adapts, 'shown', stands, adapts, stands)
  read_steering()
  steering.settle_in('set')
end
if read_steering and (steering or change.adapts or change.min or change.max) then adapt() end
if gate.weighing then gate.weighing.read_terms() end
local weighed = #weights == 0 or reweigh(weights)
expire()
hand_over()
return { now, settle(), own, weighed and 1 or 0 }
