-- The text of limiter/lua/renew.lua at commit 68fe01f, with its includes: what a client of that release sends.
local GATE = KEYS[1]
local LEASES = KEYS[2]
local HOLDERS = KEYS[3]
local QUEUE = KEYS[4]
local WAITERS = KEYS[5]
local ALIVE = KEYS[6]
local LIMIT = ARGV[1]
local RATE = ARGV[2]
local BURST = ARGV[3]
local PROCESS = ARGV[4]
local ALIVE_US = ARGV[5]
local REST = 6
local function each_permit()
  local i, after = REST - 3, #ARGV + 1
  return function()
    i = i + 3
    if i < after then return ARGV[i], ARGV[i + 1], ARGV[i + 2] end
  end
end
-- renew.lua: one process's heartbeat: it extends the leases and keeps the waiters alive.
-- KEYS   gate leases holders queue waiters alive
-- ARGV   limit rate burst process alive_us, then for each permit: id fence term_us
-- REPLY  {now_us, wake_us, grants, made_us, then for each: 1 held | 0 lost}
--
-- A permit that the server does not know was lost with its data: its holder's own clock runs
-- out before the lease does, so it never renews an expired one. The permit is restored if there
-- is room, and lost if others have the room by now.
-- line.lua: the gate's line: how permits are granted, who waits, and who looks again when.
-- state.lua: what every script of a gate begins with: its clock, its settings, its room, its leases.
-- It needs the keys gate leases holders queue waiters alive, and the arguments limit, rate, burst
-- ('' for none) and process.
local call, format = redis.call, string.format
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function read()
  return call('HMGET', GATE, 'limit', 'rate', 'burst', 'paused', 'tokens', 'refilled',
    'fence', 'granted', 'released', 'ticket', 'head', 'head_wakes', 'made')
end

local fields = read()
if not fields[1] then
  -- A gate that is new, or was lost with the server's data, is made with what its
  -- caller was constructed with. Its bucket starts empty: a burst is earned, not given.
  call('HSET', GATE, 'limit', LIMIT, 'rate', RATE, 'burst', BURST, 'tokens', 0, 'refilled', now, 'made', now)
  fields = read()
end
local gate = {
  limit = tonumber(fields[1]) or math.huge,
  rate = tonumber(fields[2]) or 0,
  burst = tonumber(fields[3]) or 0,
  tokens = tonumber(fields[5]) or 0,
  paused = fields[4] == '1',
  fence = fields[7] or 0,
  granted = 0,
  released = 0,
  ticket = tonumber(fields[10]) or 0,
  made = fields[13] or 0,
}
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

local function count(what, by)
  if by > 0 then call('HINCRBY', GATE, what, by) end
end

-- Write the gate's changed fields, in one command.
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

local function free(ids)
  if #ids == 0 then return end
  call('ZREM', LEASES, unpack(ids))
  call('HDEL', HOLDERS, unpack(ids))
end

-- At most a thousand, to keep the call short; the rest counts as held until the next call.
local function expire()
  gate.live = call('ZCARD', LEASES)
  if gate.live == 0 then return end
  local dead = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 1000)
  free(dead)
  count('expired', #dead)
  gate.live = gate.live - #dead
end

local function fence_in(holder) return holder and string.match(holder, '^%d+') end
local function fence_of(id) return fence_in(call('HGET', HOLDERS, id)) end

-- Give back permits, each an id and its fence. A permit that expired and was granted again
-- under the same id has another fence, and stays.
local function release(permits)
  local ids, fences, held = {}, {}, {}
  for id, fence in permits do ids[#ids + 1], fences[#ids + 1] = id, fence end
  if #ids == 0 then return end
  for n, holder in ipairs(call('HMGET', HOLDERS, unpack(ids))) do
    if fence_in(holder) == fences[n] then held[#held + 1] = ids[n] end
  end
  free(held)
  gate.released = gate.released + #held
end


-- Grants are collected, and `write_grants` writes them all in two commands. Call it before
-- `fence_of`, which reads what is written.
local leases, holders = {}, {}
local stamp

-- The fence only grows. After a loss of data it goes on from the clock, which is ahead of it.
local function grant(id, process, term)
  gate.fence = math.max(gate.fence + 1, now)
  if gate.rate > 0 then gate.tokens = gate.tokens - 1 end
  gate.live, gate.granted = gate.live + 1, gate.granted + 1
  stamp = stamp or format('|%.0f', now)
  local n = #leases
  leases[n + 1], leases[n + 2] = now + term, id
  holders[n + 1], holders[n + 2] = id, format('%.0f|', gate.fence) .. process .. stamp
  return gate.fence
end

local function write_grants()
  if #leases > 0 then
    call('ZADD', LEASES, unpack(leases))
    call('HSET', HOLDERS, unpack(holders))
    leases, holders = {}, {}
  end
end

-- Looked up once: a change of the line sets it to nil again. False if nobody waits.
local front
local function first_waiter()
  if front == nil then front = call('ZRANGE', QUEUE, 0, 0)[1] or false end
  return front
end

local function read_waiter(record)
  if not record then return nil end
  local process, term = string.match(record, '^(.-)|(%d+)|')
  return process, tonumber(term)
end

local function leave(ids)
  if #ids == 0 then return end
  call('ZREM', QUEUE, unpack(ids))
  call('HDEL', WAITERS, unpack(ids))
  front = nil
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

-- Move the first living waiters into the leases, as far as there is room: at most a
-- thousand a call, dead ones included, with one message to each process. The caller's own
-- grants (`id fence id fence …`) are in the reply.
local own = ''
local function hand_over()
  local left, messages, dropped = 1000, {}, 0
  while left > 0 and room() > 0 do
    local ids = call('ZRANGE', QUEUE, 0, math.min(room(), left) - 1)
    front = ids[1] or false
    if not front then break end
    left = left - #ids
    local records = call('HMGET', WAITERS, unpack(ids))
    leave(ids)
    for i, id in ipairs(ids) do
      local process, term = read_waiter(records[i])
      if process and alive(process) then
        local fence = grant(id, process, term)
        messages[process] = format('%s%s %.0f ', messages[process] or '', id, fence)
      else
        dropped = dropped + 1
      end
    end
  end
  write_grants()
  own, messages[PROCESS] = messages[PROCESS] or '', nil
  for process, grants in pairs(messages) do notify(process, 'grants', grants) end
  count('dropped', dropped)
end

-- Microseconds until time alone may let somebody in: a token, or a lease's end. -1: never.
local function next_change()
  if gate.paused then return -1 end
  if room() > 0 then return 0 end
  if gate.live < gate.limit then return math.ceil((1 - gate.tokens) * 1000000 / gate.rate) end
  local first = call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
  return first[2] and math.max(0, first[2] - now) or -1
end

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

expire()
call('ZREMRANGEBYSCORE', ALIVE, '-inf', now)
call('ZADD', ALIVE, now + ALIVE_US, PROCESS)
local reply, readmitted, lost = { now, 0, '', gate.made }, 0, 0
for id, fence, term in each_permit() do
  local known = fence_of(id)
  local held = known == fence
  if not known and gate.live < gate.limit then
    leave({ id }) -- it may have asked again meanwhile: nobody holds and waits at once
    call('HSET', HOLDERS, id, format('%s|%s|%.0f', fence, PROCESS, now))
    gate.fence = math.max(gate.fence, fence)
    held, readmitted, gate.live = true, readmitted + 1, gate.live + 1
  end
  if held then call('ZADD', LEASES, now + term, id) else lost = lost + 1 end
  reply[#reply + 1] = held and 1 or 0
end
if readmitted > 0 then call('HSET', GATE, 'fence', gate.fence) end
count('readmitted', readmitted)
count('lost', lost)
hand_over()
reply[2], reply[3] = settle(), own
return reply
