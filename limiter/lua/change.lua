-- change.lua: when time alone may let somebody in.
-- include: hand_over.lua

-- Microseconds until time alone may let somebody in: a token, or a lease's end. -1: never.
local function next_change()
  if gate.paused then return -1 end
  if room() > 0 then return 0 end
  if gate.live < gate.limit then return math.ceil((1 - gate.tokens) * 1000000 / gate.rate) end
  local first = call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, first[2] - now) or -1
end
