-- plain_line.lua: the line of a gate at which each permit costs one and nobody has a share; who is
-- first in it, and when time alone lets somebody in.
-- include: line.lua

local grant = lease

-- False if nobody waits.
local function first_waiter()
  if front == nil then front = call('ZRANGE', QUEUE, 0, 0)[1] or false end
  return front
end

-- Its process and its term.
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

-- Move the first living waiters into the leases, as far as there is room: at most a
-- thousand a call, dead ones included.
local function hand_over()
  local left, messages, dropped = 1000, {}, 0
  while left > 0 and room() > 0 do
    local ids = call('ZRANGE', QUEUE, 0, math.min(room(), left) - 1)
    front = ids[1] or false
    if not front then break end
    left = left - #ids
    for i, record in ipairs(call('HMGET', WAITERS, unpack(ids))) do
      local process, term = read_waiter(record)
      if process and alive(process) then
        messages[process] = format('%s%s %d ', messages[process] or '', ids[i], grant(ids[i], process, term))
      else
        dropped = dropped + 1
      end
    end
    leave(ids)
  end
  send_grants(messages, dropped)
end

-- Microseconds until time alone may let somebody in: a token, or a lease's end. -1: never.
local function next_change()
  if gate.paused then return -1 end
  if room() > 0 then return 0 end
  if gate.live < gate.limit then return math.ceil((1 - gate.tokens) * 1000000 / gate.rate) end
  return lease_ends() or -1
end
