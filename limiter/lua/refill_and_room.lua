-- refill_and_room.lua: a gate with a rate has earned tokens since it was last looked at; what is free now.
if gate.rate > 0 then
  local passed = math.max(0, now - (fields[6] or now))
  gate.tokens = math.min(gate.burst, gate.tokens + passed * gate.rate / 1000000)
end

-- How many permits may be granted at this instant. `gate.live` is set by `expire`.
local function room()
  if gate.paused then return 0 end
  local free = gate.limit - gate.live
  if gate.rate > 0 then free = math.min(free, math.floor(gate.tokens)) end
  return free
end
