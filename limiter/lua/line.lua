-- line.lua: the waiters: who is first, who lives, and how they are told.
-- include: grants.lua

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
