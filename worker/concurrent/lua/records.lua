-- records.lua: RQ's and our records of a job and its executions, and the time as RQ writes it.
-- It needs the keys wip, work, running (the leases) and executions, and `now`, `call` and `format`.
local seconds = math.floor(now / 1000000)
local in_seconds = format('%d.%06d', seconds, now % 1000000)

-- ISO, e.g. 2026-08-02T10:11:12.345678Z: days to a civil date, with years that begin in March.
local function rq_time()
  local floor = math.floor
  local z = floor(seconds / 86400) + 719468
  local era = floor(z / 146097)
  local day = z - era * 146097
  local year = floor((day - floor(day / 1460) + floor(day / 36524) - floor(day / 146096)) / 365)
  local of_year = day - (365 * year + floor(year / 4) - floor(year / 100))
  local m = floor((5 * of_year + 2) / 153)
  local month = m < 10 and m + 3 or m - 9
  return format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year + era * 400 + (month < 3 and 1 or 0),
    month, of_year - floor((153 * m + 2) / 5) + 1, floor(seconds / 3600) % 24,
    floor(seconds / 60) % 60, seconds % 60, now % 1000000)
end

local function job_key(id) return 'rq:job:' .. id end

-- include: worker.queue:try.lua
local function whole(text)
  return text and #text < 16 and tonumber(string.match(text, '^-?%d+$')) or nil
end
local function field(id, name)
  local value = try('HGET', job_key(id), name)
  return type(value) == 'string' and value or nil
end

-- The fence only grows. After a loss of data it continues from the clock, which is ahead of it.
local fence
local function next_fence()
  fence = math.max((fence or tonumber(call('HGET', WORK, 'fence') or 0) or 0) + 1, now)
  return format('%d', fence)
end

local function tally(what, by)
  if by > 0 then call('HINCRBY', WORK, what, by) end
end

-- A worker is busy while it has executions, whichever way the last of them ended.
local function rest(worker, executions)
  if try('SCARD', executions) == 0 and call('EXISTS', worker) == 1 then
    try('HSET', worker, 'state', 'idle')
  end
end

-- For `penstock queues dropped`: jobs that are taken off without a run, and results that are refused.
-- It is only a note: a user that may not write it works all the same.
local noted = false
local function note_drop(id, why)
  local key = WORK .. ':dropped'
  redis.pcall('XADD', key, 'MAXLEN', '~', 1000, '*', 'job', id, 'why', why, 'worker', NAME)
  if not noted then redis.pcall('EXPIRE', key, 7 * 24 * 3600) end
  noted = true
end

-- The lease is the last to go: until then the reaper finds what is left.
local function forget(id, execution)
  local member = id .. ':' .. execution
  call('ZREM', WIP, member)
  call('SREM', EXECUTIONS, member)
  call('DEL', 'rq:execution:' .. member)
  try('ZREM', 'rq:executions:' .. id, execution)
  call('ZREM', RUNNING, member)
end

-- Whether the process that wants a job is gone. One lookup per process.
local living = {}
local function is_orphan(client)
  if not client then return false end
  if living[client] == nil then
    living[client] = call('EXISTS', 'penstock:client:{' .. client .. '}') == 1
  end
  return not living[client]
end
