-- records.lua: RQ's and our records of one execution, and how both end.
-- Needs WIP, WORK, RUNNING (the leases), WORKER, EXECUTIONS, now, call, format.
local floor = math.floor
local seconds = floor(now / 1000000)

local function job_key(id) return 'rq:job:' .. id end

-- The time as RQ writes it, e.g. 2026-08-02T10:11:12.345678Z (days to a civil date,
-- with years that begin in March).
local function rq_time()
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

-- The fence only grows, also over a loss of data: no clock that ran forward repeats it.
local fence = tonumber(call('HGET', WORK, 'fence') or 0)
local function next_fence()
  fence = math.max(fence + 1, now)
  return format('%.0f', fence)
end

local function tally(what, by)
  if by > 0 then call('HINCRBY', WORK, what, by) end
end

local function forget(id, execution)
  local member = id .. ':' .. execution
  call('ZREM', RUNNING, member)
  call('ZREM', WIP, member)
  call('SREM', EXECUTIONS, member)
  call('DEL', 'rq:execution:' .. member)
  call('ZREM', 'rq:executions:' .. id, execution)
end

-- To the front of the queue; among others that came back, in the order they were enqueued.
local function to_front(id)
  local mine, after = call('HGET', job_key(id), 'enqueued_at') or '', nil
  local other = call('LINDEX', JOBS, 0)
  local at = 0
  while other do
    local its = call('HMGET', job_key(other), 'penstock_returned', 'enqueued_at')
    if not its[1] or (its[2] or '') >= mine then break end
    at, after = at + 1, other
    other = call('LINDEX', JOBS, at)
  end
  if after then call('LINSERT', JOBS, 'AFTER', after, id) else call('LPUSH', JOBS, id) end
  if call('EXISTS', job_key(id)) == 1 then call('HSET', job_key(id), 'penstock_returned', 1) end
end

local function empty_hand(hand)
  local ids = call('LRANGE', hand, 0, -1)
  for i = #ids, 1, -1 do to_front(ids[i]) end
  call('DEL', hand)
  return #ids
end

-- An execution undone, as if the job had not been claimed.
local function put_back(id)
  local key = job_key(id)
  call('HSET', key, 'status', 'queued')
  call('HDEL', key, 'penstock_execution')
  local ttl = tonumber(call('HGET', key, 'ttl') or 0)
  if ttl > 0 then call('EXPIRE', key, ttl) end
  to_front(id)
end
