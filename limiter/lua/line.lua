-- line.lua: the gate's line: how permits are granted, who waits, and who looks again when.
-- include: state.lua

-- Grants are collected, and `write_grants` writes them all in two commands. Call it before
-- `fence_of`, which reads what is written.
local leases, holders = {}, {}
local stamp

-- The fence only grows. After a loss of data it goes on from the clock, which is ahead of it.
local function lease(id, process, term)
  gate.fence = math.max(gate.fence + 1, now)
  if gate.rate > 0 then gate.tokens = gate.tokens - 1 end
  gate.live, gate.granted = gate.live + 1, gate.granted + 1
  stamp = stamp or format('|%d', now)
  local n = #leases
  leases[n + 1], leases[n + 2] = now + term, id
  holders[n + 1], holders[n + 2] = id, format('%d|', gate.fence) .. process .. stamp
  return gate.fence
end

local function write_grants()
  if #leases > 0 then
    call('ZADD', LEASES, unpack(leases))
    call('HSET', HOLDERS, unpack(holders))
    leases, holders = {}, {}
  end
end

-- Until when each process lives; the caller does.
local lives = {}
local function alive(process)
  if process == PROCESS then return true end
  if not lives[process] then
    lives[process] = tonumber(call('ZSCORE', ALIVE, process) or 0)
  end
  return lives[process] > now
end

local function notify(process, what, text)
  local inbox = GATE .. ':inbox:' .. process
  call('XADD', inbox, 'MAXLEN', '~', 1024, '*', 'at', now, what, text)
  call('EXPIRE', inbox, 3600)
end

local own = '' -- the caller's own grants, for its reply: `id fence id fence …`

-- Write what was granted, with one message to each process.
local function send_grants(messages, dropped)
  write_grants()
  own, messages[PROCESS] = own .. (messages[PROCESS] or ''), nil
  for process, grants in pairs(messages) do notify(process, 'grants', grants) end
  count('dropped', dropped)
end

-- Microseconds until the first lease ends; nil if there is none.
local function lease_ends()
  local first = call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, first[2] - now)
end

local front -- the first waiter, looked up once; a change of the line sets it to nil again
-- include: plain_line.lua or weighed_line.lua if full

local NEVER = 9007199254740991

-- The process of the first living waiter. Dead waiters before it leave the line, also while
-- there is no room: a dead process at the head would not look again when time lets one in.
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

-- Tell the first waiter's process when to look again, and return when the caller should.
-- Only the first waiter's process sleeps until the next change. The others sleep until that
-- process counts as dead; one that moves to the head gets a message.
local function watch(owner)
  local wake = next_change()
  local wakes = wake < 0 and NEVER or now + wake
  local news = fields[11] ~= owner or wakes < tonumber(fields[12])
  if news and owner ~= PROCESS then notify(owner, 'wake', wake) end
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
