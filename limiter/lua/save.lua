-- save.lua: how what a script did to a gate is counted and written back.
-- include: state.lua

local function count(what, by)
  if by > 0 then call('HINCRBY', GATE, what, by) end
end

-- The gate as it is now, in one write. What did not change is left alone.
local function save()
  local n, changed = 0, {}
  local function set(field, value)
    changed[n + 1], changed[n + 2], n = field, value, n + 2
  end
  if gate.rate > 0 then set('tokens', gate.tokens) set('refilled', now) end
  if gate.granted > 0 then set('fence', gate.fence) set('granted', (fields[8] or 0) + gate.granted) end
  if gate.granted + gate.released > 0 then set('released', (fields[9] or 0) + gate.released) end
  if gate.ticket > (tonumber(fields[10]) or 0) then set('ticket', gate.ticket) end
  if gate.head then set('head', gate.head) set('head_wakes', gate.head_wakes) end
  if n > 0 then call('HSET', GATE, unpack(changed)) end
end
