-- watch.lua: when to look again, and who does: time alone may let somebody in.
-- include: change.lua
local NEVER = 9007199254740991

-- The process of the first living waiter. The dead before it leave the line, also while
-- there is no room: nobody could say when to look after a dead head again.
local function head_owner()
  local dropped, owner = 0, nil
  while dropped < 1000 do
    local head = first_waiter()
    owner = head and read_waiter(call('HGET', WAITERS, head))
    if not head or (owner and alive(owner)) then break end
    leave({ head })
    dropped = dropped + 1
  end
  count('dropped', dropped)
  return owner
end

-- See that the process of the first in line knows when to look again, and return when
-- the caller should. Only that process sleeps to the next change; the others to the end
-- of its life, and one that moves up is told.
local function watch(owner)
  local wake = next_change()
  local wakes = wake < 0 and NEVER or now + wake
  local news = fields[11] ~= owner or wakes < tonumber(fields[12])
  if news and owner ~= PROCESS then mail(owner, 'wake', wake) end
  if news or owner == PROCESS then gate.head, gate.head_wakes = owner, wakes end
  if owner == PROCESS then return wake end
  return alive(owner) and lives[owner] - now or 0
end

-- Write everything back, and return when the caller should look again.
local function settle()
  write_grants()
  local owner = head_owner()
  local wake = owner and watch(owner) or -1
  save()
  return wake
end
