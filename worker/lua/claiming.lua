-- claiming.lua: job ids become executions: leased, fenced, and in RQ's registries.
-- Reads lease_us, keep_s, want and the worker's name from ARGV[OFF + 1] on.
-- include: unwanted.lua
local LEASE, KEEP, NAME = ARGV[OFF + 1], tonumber(ARGV[OFF + 2]), ARGV[OFF + 4]
local taken, dropped, running, wip, members = {}, 0, {}, {}, {}

local function claim(id, job, flat)
  local execution, key, n = next_fence(), job_key(id), #members
  local member = id .. ':' .. execution
  if job.penstock_returned then call('HDEL', key, 'penstock_returned') end
  if job.ttl then call('PERSIST', key) end
  call('HSET', key, 'status', 'started', 'started_at', moment, 'last_heartbeat', moment, 'worker_name', NAME,
    'penstock_execution', execution, 'penstock_attempts', (job.penstock_attempts or 0) + 1)
  call('HSET', 'rq:execution:' .. member, 'id', execution, 'job_id', id, 'worker_name', NAME,
    'created_at', in_seconds, 'last_heartbeat', in_seconds)
  call('EXPIRE', 'rq:execution:' .. member, KEEP)
  call('ZADD', 'rq:executions:' .. id, seconds + KEEP, execution)
  call('EXPIRE', 'rq:executions:' .. id, KEEP + 60)
  members[n + 1] = member
  running[2 * n + 1], running[2 * n + 2] = now + LEASE, member
  wip[2 * n + 1], wip[2 * n + 2] = seconds + KEEP, member
  taken[n + 1] = { id, execution, flat }
end

local function take_or_drop(id)
  local flat, job = call('HGETALL', job_key(id)), {}
  for i = 1, #flat, 2 do job[flat[i]] = flat[i + 1] end
  if unwanted(id, job) then dropped = dropped + 1 else claim(id, job, flat) end
end

local function claim_up_to(want)
  while #taken < want do
    local ids = call('LPOP', HAND, want - #taken) or call('LPOP', JOBS, want - #taken)
    if not ids or #ids == 0 then break end
    for _, id in ipairs(ids) do take_or_drop(id) end
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
