-- full_fenced_release.lua: how permits end that may have a cost, a share, and a report on the service.
-- include: state.lua

local function save_kind(set)
  if steering then steering.save(set) end
  if gate.weighing then gate.weighing.save(set) end
  if gate.sharing then gate.sharing.save(set) end
  if gate.save_breaker then gate.save_breaker(set) end
end

-- Units in flight beyond one for each permit.
local function extra_units() return gate.weighing and gate.weighing.extra or 0 end

-- What a permit's release says: see `release`.
local function read_receipt(id, fence, receipt)
  local weighing = gate.weighing
  if gate.broken then gate.came_back(fence) end
  if steering then
    steering.hear(fence, string.match(receipt, ' (%S*)') or '', weighing and weighing.held(id))
  end
  if weighing then weighing.settle(receipt) end
  if weighing and gate.sharing then gate.sharing.settle(receipt) end
end
