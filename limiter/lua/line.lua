-- line.lua: the gate's line: how permits are granted, who waits, and who looks again when.
-- include: state.lua

-- Grants are collected, and `write_grants` writes them all in two commands. Call it before
-- `fence_of`, which reads what is written.
local leases, holders = {}, {}
local stamp

-- The fence only grows. After a loss of data it goes on from the clock, which is ahead of it.
local function grant(id, process, term, cost)
  gate.fence = math.max(gate.fence + 1, now)
  if gate.rate > 0 then gate.tokens = gate.tokens - 1 end
  gate.live, gate.granted = gate.live + 1, gate.granted + 1
  if gate.weighing then gate.weighing.charge(id, cost) end
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

-- Its process, its term, and its cost if it has one.
local function read_waiter(record)
  if not record then return nil end
  local process, term = string.match(record, '^(.-)|(%d+)|')
  return process, tonumber(term)
end

local function leave(ids)
  if #ids == 0 then return end
  call('HDEL', WAITERS, unpack(ids)) -- a place without a record is dropped when its turn comes
  call('ZREM', QUEUE, unpack(ids))
  front = nil
end

-- A plain gate has the functions above. These take their place, since each local that a function
-- uses costs every script a little.
if gate.weighing or gate.sharing then
  function read_waiter(record)
    if not record then return nil end
    if gate.sharing then record = gate.sharing.plain(record) end
    local process, term = string.match(record, '^(.-)|(%d+)|')
    return process, tonumber(term), gate.weighing and string.match(record, '|%d+|(.+)|%d+$')
  end
end

if gate.sharing then
  function first_waiter()
    if front == nil then front = gate.sharing.first() or false end
    return front
  end

  function leave(ids, records)
    if #ids == 0 then return end
    gate.sharing.leave(ids, records)
    call('HDEL', WAITERS, unpack(ids))
    front = nil
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

-- Move the first living waiters into the leases, as far as there is room: at most a
-- thousand a call, dead ones included, with one message to each process. The caller's own
-- grants (`id fence id fence …`) are in the reply.
local own = ''
local function hand_over()
  if steering then steering.step() end
  local left, messages, dropped = 1000, {}, 0
  local sharing, weighing = gate.sharing, gate.weighing
  local following = weighing and weighing.walk(read_waiter, alive, sharing and sharing.candidates)
  while left > 0 and (following or room() > 0) do
    local ids = following and following() or sharing and sharing.next(math.min(room(), left))
      or call('ZRANGE', QUEUE, 0, math.min(room(), left) - 1)
    if not following then front = ids[1] or false end
    if not ids[1] then break end
    left = left - #ids
    local records, paid, price, paying = call('HMGET', WAITERS, unpack(ids)), 0, 1, nil
    for i, id in ipairs(ids) do
      local process, term, cost = read_waiter(records[i])
      if process and alive(process) then
        local fence = grant(id, process, term, cost)
        messages[process] = format('%s%s %.0f ', messages[process] or '', id, fence)
        if sharing then
          if weighing then price = weighing.price(cost) end
          paid, paying = paid + price, records[i]
        end
      else
        dropped = dropped + 1
      end
    end
    if paying then sharing.served(paying, paid, price) end
    leave(ids, records)
  end
  write_grants()
  own, messages[PROCESS] = own .. (messages[PROCESS] or ''), nil
  for process, grants in pairs(messages) do notify(process, 'grants', grants) end
  count('dropped', dropped)
end

-- Microseconds until time alone may let somebody in: a token, or a lease's end. -1: never.
local function next_change()
  if gate.paused then return gate.held or -1 end
  local wait
  if gate.weighing then
    wait = gate.weighing.wait
    if not gate.weighing.full then return wait or 0 end
  else
    if room() > 0 then return 0 end
    if gate.live < gate.limit then return math.ceil((1 - gate.tokens) * 1000000 / gate.rate) end
  end
  local first = call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
  local ends = first[2] and math.max(0, first[2] - now)
  return wait and ends and math.min(wait, ends) or wait or ends or -1
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
