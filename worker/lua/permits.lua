-- permits.lua: the permit of an execution ends with it, and is handed over in the same script.
-- include: limiter:watch.lua
-- With a hold it stays for so long: the sandbox may still be at work on the program.
local function free_permit(member, hold_us)
  if not fence_of(member) then return end
  if hold_us and hold_us > 0 then
    call('ZADD', LEASES, now + hold_us, member)
  else
    free({ member })
    gate.released = gate.released + 1
  end
end

local function pass_on()
  expire()
  hand_over()
  settle()
end
