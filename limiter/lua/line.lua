-- line.lua: the waiters: who is first, who lives, and handing permits over to them.
-- include: leases.lua

-- Looked up once: whoever changes the line makes us forget. False if nobody waits.
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

-- Whoever calls is alive.
local lives = {}
local function alive(process)
  if process == PROCESS then return true end
  if not lives[process] then
    lives[process] = tonumber(call('ZSCORE', ALIVE, process) or 0)
  end
  return lives[process] > now
end

local function mail(process, what, text)
  local inbox = GATE .. ':inbox:' .. process
  call('XADD', inbox, 'MAXLEN', '~', 1024, '*', 'at', now, what, text)
  call('EXPIRE', inbox, 3600)
end

-- Move the first living waiters into the leases, as far as there is room: at most a
-- thousand a call, dead ones included, and one message to each process. The caller's own
-- grants, as `id fence id fence …`, go home with the reply.
local own = ''
local function hand_over()
  local left, letters, dropped = 1000, {}, 0
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
        letters[process] = format('%s%s %.0f ', letters[process] or '', id, fence)
      else
        dropped = dropped + 1
      end
    end
  end
  write_grants()
  own, letters[PROCESS] = letters[PROCESS] or '', nil
  for process, grants in pairs(letters) do mail(process, 'grants', grants) end
  count('dropped', dropped)
end
