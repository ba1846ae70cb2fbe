-- gated.lua: permits for a worker with a gate. They begin and end with executions, in one script.
-- KEYS   gate leases holders queue waiters alive
-- ARGV   limit rate burst process
-- include: limiter:line.lua

-- How many jobs may be claimed now. A permit that was `granted` to this worker is given up
-- for the first of them; without it the others in the gate's line come first.
local function permits_for(granted)
  local fence_given_up = fence_of(granted)
  local given_up = fence_given_up and 1 or 0
  if given_up == 1 then
    free({ granted })
    gate.released = gate.released + 1
    if gate.rate > 0 then gate.tokens = gate.tokens + 1 end
    if gate.weighing then gate.weighing.refund() end
    if gate.broken then gate.came_back(fence_given_up) end
  end
  expire()
  if given_up == 0 then hand_over() end
  if first_waiter() then return given_up end
  local free = gate.weighing and math.min(room(), gate.weighing.earned()) or room()
  return math.max(given_up, free)
end

local function give_permits(jobs, term)
  for _, job in ipairs(jobs) do
    job[4] = grant(job[1] .. ':' .. job[2], PROCESS, term)
    job[5] = gate.ticket
  end
  hand_over()
  settle()
end

local function renew_permit(member, fence, until_us)
  if fence == '0' then return true end
  if fence_of(member) ~= fence then return false end
  call('ZADD', LEASES, until_us, member)
  return true
end

local ended, reports = {}, {}

-- With a hold it stays for so long: the sandbox may still be at work on the program. Behind the
-- hold is what the execution reports to a gate that adapts (`adapt.lua`).
local function free_permit(member, hold)
  local hold_us, report = tonumber(hold), nil
  if not hold_us then hold_us, report = string.match(hold, '^(%d+) (.*)$') end
  if steering then reports[member] = report end
  if tonumber(hold_us) <= 0 then
    ended[#ended + 1] = member
  elseif fence_of(member) then
    if steering and report then steering.hear(fence_of(member), report) end
    call('ZADD', LEASES, now + hold_us, member)
  end
end

local function held_ones(members)
  local held = {}
  if #members == 0 then return held end
  for n, holder in ipairs(call('HMGET', HOLDERS, unpack(members))) do
    if holder then
      held[#held + 1] = members[n]
      if steering then steering.hear(fence_in(holder), reports[members[n]] or '') end
    end
  end
  return held
end

local function pass_on()
  local held = held_ones(ended)
  free(held)
  gate.released = gate.released + #held
  expire()
  hand_over()
  settle()
end
