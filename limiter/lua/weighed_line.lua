-- weighed_line.lua: the line of any gate: permits may have a cost, waiters a share.
-- include: line.lua
local sharing, weighing = gate.sharing, gate.weighing

local function grant(id, process, term, cost)
  if weighing then weighing.charge(id, cost) end
  if gate.broken then gate.let_through(1) end
  return lease(id, process, term)
end

-- False if nobody waits.
local function first_waiter()
  if front == nil then
    if sharing then front = sharing.first() else front = call('ZRANGE', QUEUE, 0, 0)[1] end
    front = front or false
  end
  return front
end

-- Its process, its term, and its cost if it has one.
local function read_waiter(record)
  if not record then return nil end
  if sharing then record = sharing.plain(record) end
  local process, term = string.match(record, '^(.-)|(%d+)|')
  return process, tonumber(term), weighing and string.match(record, '|%d+|(.+)|%d+$')
end

local function leave(ids, records)
  if #ids == 0 then return end
  if sharing then sharing.leave(ids, records) end
  call('HDEL', WAITERS, unpack(ids)) -- a place without a record is dropped when its turn comes
  if not sharing then call('ZREM', QUEUE, unpack(ids)) end
  front = nil
end

-- Those who go next: with costs one at a time, with shares those of one share.
local function next_ones(following, most)
  if following then return following() end
  local ids = sharing and sharing.next(most) or call('ZRANGE', QUEUE, 0, most - 1)
  front = ids[1] or false
  return ids
end

-- Move the first living waiters into the leases, as far as there is room: at most a
-- thousand a call, dead ones included.
local function hand_over()
  if steering then steering.step() end
  local left, messages, dropped = 1000, {}, 0
  local following = weighing and weighing.walk(read_waiter, alive, sharing and sharing.candidates)
  while left > 0 and (following or room() > 0) do
    local ids = next_ones(following, math.min(room(), left))
    if not ids[1] then break end
    left = left - #ids
    local records, paid, price, paying = call('HMGET', WAITERS, unpack(ids)), 0, 1, nil
    for i, id in ipairs(ids) do
      local process, term, cost = read_waiter(records[i])
      if process and alive(process) then
        messages[process] = format('%s%s %d ', messages[process] or '', id, grant(id, process, term, cost))
        if sharing and weighing then price = weighing.price(cost) end
        paid, paying = paid + price, records[i]
      else
        dropped = dropped + 1
      end
    end
    if sharing and paying then sharing.served(paying, paid, price) end
    leave(ids, records)
  end
  send_grants(messages, dropped)
end

-- Microseconds until time alone may let somebody in: a token, or a lease's end. -1: never.
local function next_change()
  if gate.paused then return gate.held or -1 end
  local wait
  if weighing then
    wait = weighing.wait
    if not weighing.full then return wait or 0 end
  else
    if room() > 0 then return 0 end
    if gate.live < gate.limit then return math.ceil((1 - gate.tokens) * 1000000 / gate.rate) end
  end
  local ends = lease_ends()
  return wait and ends and math.min(wait, ends) or wait or ends or -1
end
