-- breaker_on_gate.lua: the breaker of a queue with a gate pauses that gate, for all who use it.
-- include: gated.lua
local function standing() return gate.broken end
-- A permit that went back before its job's end, between two attempts or for one with its cost, was counted back then.
local function is_out(member) return fence_of(member) end
local function is_paused_by_hand() return fields[4] == '1' end

local function trip(why)
  call('HSET', WORK, 'breaker', GATE) -- for those who look at the queue alone
  if not gate.trip then make_few_pass() end
  gate.trip(why)
end

local function obey() if gate.broken then gate.obey() end end
