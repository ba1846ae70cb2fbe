-- claiming.lua: job ids become executions: leased, fenced, and in RQ's registries.
-- Reads lease_us, keep_s, want and the worker's name from ARGV[OFF + 1] on.
-- include: records.lua
local LEASE, KEEP, NAME = ARGV[OFF + 1], tonumber(ARGV[OFF + 2]), ARGV[OFF + 4]
local OVER = { finished = true, failed = true, stopped = true, canceled = true }
local moment, taken, dropped = rq_time(), {}, 0
local running, wip, members, attempts = {}, {}, {}, 0

-- Its trainer is gone and did not want it run in vain.
local function drop_abandoned(id, client)
  if not client or call('EXISTS', 'penstock:client:{' .. client .. '}') == 1 then return false end
  call('HSET', job_key(id), 'status', 'canceled', 'ended_at', moment)
  call('EXPIRE', job_key(id), 3600)
  return true
end

-- Duplicates that RQ's cleaners make, and what ended or vanished while it waited.
local function unwanted(id)
  local key = job_key(id)
  local job = call('HMGET', key, 'origin', 'status', 'penstock_execution', 'penstock_abandon',
    'penstock_returned', 'penstock_attempts', 'ttl')
  attempts = (job[6] or 0) + 1
  if job[5] then call('HDEL', key, 'penstock_returned') end
  if job[7] then call('PERSIST', key) end
  if not job[1] or OVER[job[2]] then return true end
  if job[3] and call('ZSCORE', RUNNING, id .. ':' .. job[3]) then return true end
  if job[2] == 'started' and call('ZCOUNT', 'rq:executions:' .. id, seconds, '+inf') > 0 then
    return true
  end
  return drop_abandoned(id, job[4])
end

local function claim(id)
  local execution, key = next_fence(), job_key(id)
  local member = id .. ':' .. execution
  call('HSET', key, 'status', 'started', 'started_at', moment, 'last_heartbeat', moment,
    'worker_name', NAME, 'penstock_execution', execution, 'penstock_attempts', attempts)
  call('HSET', 'rq:execution:' .. member, 'id', execution, 'job_id', id, 'worker_name', NAME,
    'created_at', format('%.6f', now / 1000000), 'last_heartbeat', format('%.6f', now / 1000000))
  call('EXPIRE', 'rq:execution:' .. member, KEEP)
  call('ZADD', 'rq:executions:' .. id, seconds + KEEP, execution)
  call('EXPIRE', 'rq:executions:' .. id, KEEP + 60)
  local n = #members
  members[n + 1] = member
  running[2 * n + 1], running[2 * n + 2] = now + LEASE, member
  wip[2 * n + 1], wip[2 * n + 2] = seconds + KEEP, member
  taken[n + 1] = { id, execution, call('HGETALL', key) }
end

local function claim_up_to(want)
  while #taken < want do
    local ids = call('LPOP', HAND, want - #taken) or call('LPOP', JOBS, want - #taken)
    if not ids or #ids == 0 then break end
    for _, id in ipairs(ids) do
      if unwanted(id) then dropped = dropped + 1 else claim(id) end
    end
  end
  if #taken > 0 then
    call('ZADD', RUNNING, unpack(running))
    call('ZADD', WIP, unpack(wip))
    call('SADD', EXECUTIONS, unpack(members))
    call('EXPIRE', EXECUTIONS, KEEP)
    call('HSET', WORK, 'fence', format('%.0f', fence))
    call('HSET', WORKER, 'state', 'busy')
  end
  tally('claimed', #taken)
  tally('dropped', dropped)
end

local function suspended() return call('EXISTS', 'rq:suspended') == 1 end
