-- claim.lua: take up to `want` jobs from the hand, then the queue and its shares; leased to this worker.
-- KEYS   jobs hand wip work running worker executions
-- ARGV   lease_us keep_s(until RQ's own cleaners may act) want name granted('' or a permit's id)
-- REPLY  {now_us, jobs left in the queue, 1 if suspended or 2 if this queue is paused(also if
--         its breaker lets a few through), 1 if the gate is shut,
--         {id, execution, {field, value, …}, with a gate: fence of its permit, its place in line} each,
--         {id, why it was dropped} of some of those that were}
--
-- With a gate each job gets a permit in the same step; there is never a job without one.
-- A reply of more than 16 MB ends early, without `shut`: none of its jobs starts before its last byte
-- is there, and their leases run already.
--
-- What is taken is leased first. Redis undoes nothing of a script that stops at a call, so each job is at
-- any time in a list, or under a lease, which the reaper finds: look at the ids, lease them, take them off
-- their list, and write only then that they run. If that fails they go back to the front of the queue.
--
-- A permit that this worker was granted in the gate's line is given up here and becomes
-- that of the first job; more are taken only if nobody else waits. A queue that gives no job
-- leaves it to the worker's next queue.
-- include: clock.lua or gated.lua
-- include: records.lua
-- include: worker.queue:next_share.lua
local MOST_BYTES, YEAR = 16 * 1024 * 1024, 31536000 -- so long RQ keeps failures
local OVER = { finished = true, failed = true, stopped = true, canceled = true }
local moment = rq_time()

local function cancelled(key, why)
  call('HSET', key, 'status', 'canceled', 'ended_at', moment, 'penstock_unwanted', why)
  call('EXPIRE', key, 3600)
  return why
end

-- Why it is dropped, if it is: duplicates that RQ's cleaners make, jobs that ended or vanished while
-- they waited, and ids that RQ refuses to read. Those of RQ 1 may have any character.
local function unwanted(id, job)
  if not job.origin then return 'gone' end
  if OVER[job.status] then return 'over' end
  if string.find(id, '[^%w_-]') then
    call('HSET', job_key(id), 'status', 'failed', 'ended_at', moment)
    call('ZADD', 'rq:failed:' .. string.sub(JOBS, 10), seconds + YEAR, id)
    call('EXPIRE', job_key(id), YEAR)
    return 'id'
  end
  local execution = job.penstock_execution or ''
  if execution ~= '' and call('ZSCORE', RUNNING, id .. ':' .. execution) then return 'running' end
  if job.status == 'started' then
    local executions = try('ZCOUNT', 'rq:executions:' .. id, seconds, '+inf')
    if type(executions) == 'number' and executions > 0 then return 'running' end
  end
  -- Cancelled while it ran, and its worker died before it stopped it.
  if job.penstock_unwanted == 'cancelled' then return cancelled(job_key(id), 'cancelled') end
  -- Its trainer is gone, and asked not to run it then.
  return is_orphan(job.penstock_abandon) and cancelled(job_key(id), 'orphaned')
end

local LOGGED, MOST_DROPPED = 20, 500 -- the worker's log names some; a long list of them takes several claims
local taken, leased, dropped, bytes, seen = {}, {}, {}, 0, {}

local function drop(id, why)
  dropped[#dropped + 1] = { id, why }
  note_drop(id, why)
end

-- The fields that the script looks at, and those for the worker: without the empty ones, half of
-- all, which RQ reads as if they were absent.
local function read(id)
  local fields, n = try('HGETALL', job_key(id)), 0
  if fields.err then fields = {} end
  local job = { origin = false, status = false, ttl = false, penstock_execution = false,
    penstock_attempts = false, penstock_returned = false, penstock_abandon = false,
    penstock_unwanted = false, penstock_share = false, penstock_charged = false,
    penstock_again = false, started_at = false, worker_name = false }
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if value ~= '' then
      if job[field] == false then job[field] = value end
      fields[n + 1], fields[n + 2], n = field, value, n + 2
    end
  end
  for i = #fields, n + 1, -1 do fields[i] = nil end
  return job, fields
end

local claimed -- as the queue counts them

local function lease(begun)
  local leases, wip, members = {}, {}, {}
  for n, one in ipairs(begun) do
    local member = one.id .. ':' .. one.execution
    leases[2 * n - 1], leases[2 * n] = now + LEASE_US, member
    wip[2 * n - 1], wip[2 * n] = seconds + KEEP_S, member
    members[n] = member
  end
  call('ZADD', RUNNING, unpack(leases))
  call('ZADD', WIP, unpack(wip))
  call('SADD', EXECUTIONS, unpack(members))
  call('EXPIRE', EXECUTIONS, KEEP_S)
  claimed = claimed + #begun
  call('HSET', WORK, 'fence', format('%d', fence), 'claimed', claimed)
end

local function start(id, execution, job, charged)
  local key, member = job_key(id), id .. ':' .. execution
  call('HSET', key, 'status', 'started', 'started_at', moment, 'last_heartbeat', moment, 'worker_name', NAME,
    'penstock_execution', execution, 'penstock_attempts', (whole(job.penstock_attempts) or 0) + 1)
  if job.penstock_returned or job.penstock_unwanted or job.penstock_again then
    call('HDEL', key, 'penstock_returned', 'penstock_unwanted', 'penstock_again')
  end
  if charged then
    call('HSET', key, 'penstock_charged', charged)
  elseif job.penstock_charged then
    call('HDEL', key, 'penstock_charged')
  end
  if job.ttl or job.worker_name then call('PERSIST', key) end -- it has run before: it may have an end's ttl
  call('HSET', 'rq:execution:' .. member, 'worker_name', NAME,
    'created_at', in_seconds, 'last_heartbeat', in_seconds)
  call('EXPIRE', 'rq:execution:' .. member, KEEP_S)
  try('ZADD', 'rq:executions:' .. id, seconds + KEEP_S, execution)
  call('EXPIRE', 'rq:executions:' .. id, KEEP_S + 60)
end

-- Mostly neither is there, which one command says.
local suspended, shared = call('EXISTS', 'rq:suspended', WORK .. ':shares'), false
if suspended > 0 then
  shared = call('EXISTS', WORK .. ':shares') == 1
  if shared then suspended = suspended - 1 end
end
local looked, refunds = false, {}

-- Whether RQ has put it into the queue's list for another run: a retry, or a failed job requeued.
local function runs_again(job)
  return job.penstock_share and (job.penstock_attempts or job.started_at)
    and not (job.penstock_returned or job.penstock_again) and shares().admit(job.penstock_share)
end

-- The first ids of a list, which were `served` to a share if it is one's. Returns how many it took off.
local function claim_from(list, ids, served)
  local begun, n = {}, 0
  for _, id in ipairs(ids) do
    if bytes >= MOST_BYTES then break end
    n = n + 1
    local job, fields = read(id)
    local share = job.penstock_share or served
    local why = seen[id] and 'running' or unwanted(id, job)
    if why then
      drop(id, why)
      refunds[#refunds + 1] = share
    elseif runs_again(job) then
      shares().again(id, job.penstock_share)
      shared, refunds[#refunds + 1] = true, served
    else
      seen[id] = true
      begun[#begun + 1] = { id = id, execution = next_fence(), job = job, fields = fields,
        charged = share and shares().charged() }
      for i = 2, #fields, 2 do bytes = bytes + #fields[i] end
    end
  end
  for _, one in ipairs(begun) do leased[#leased + 1] = one end
  if #begun > 0 then lease(begun) end
  if n > 0 then call('LTRIM', list, n, -1) end
  for _, one in ipairs(begun) do one.off_its_list = true end
  for _, one in ipairs(begun) do
    start(one.id, one.execution, one.job, one.charged)
    taken[#taken + 1] = { one.id, one.execution, one.fields }
  end
  return n
end

local function first_of(list, most) return call('LRANGE', list, 0, most - 1) end

-- A few jobs in the queue's list have been served, or are all that wait without a share.
local function claim_next(most)
  if not shared then return claim_from(JOBS, first_of(JOBS, most)) end
  if not looked then
    local waiting = call('LLEN', JOBS)
    if waiting > 0 and waiting <= shares().window() then return claim_from(JOBS, first_of(JOBS, most)) end
    if waiting > 0 then shares().join('') end
    looked = true
  end
  return shares().in_turn(most, claim_from)
end

local function claim_up_to(want)
  local from_hand = true
  while #taken < want and bytes < MOST_BYTES and #dropped < MOST_DROPPED do
    local most = want - #taken
    local n = from_hand and claim_from(HAND, first_of(HAND, most)) or claim_next(most)
    if next(refunds) then
      for _, share in pairs(refunds) do shares().refund(share) end
      refunds = {}
    end
    if n < most and not from_hand and (n == 0 or not shared) then break end
    from_hand = from_hand and n == most
  end
  if #taken > 0 then call('HSET', WORKER, 'state', 'busy') end
  tally('dropped', #dropped)
end

-- After an error in the middle. A job that cannot be put back stays leased, for the reaper.
local function give_back()
  for n = #leased, 1, -1 do
    local id, execution, off = leased[n].id, leased[n].execution, leased[n].off_its_list
    if not off or type(redis.pcall('LPUSH', JOBS, id)) == 'number' then
      if off then redis.pcall('HSET', job_key(id), 'status', 'queued', 'penstock_execution', '') end
      pcall(forget, id, execution)
    end
  end
end

local kept = call('HMGET', WORK, 'paused', 'fence', 'claimed')
fence, claimed = tonumber(kept[2] or 0) or 0, tonumber(kept[3] or 0) or 0
-- include: by_hand.lua or let_few_jobs_through.lua if with_breaker
-- A permit that was granted is for a job: it goes back if there is none.
local idle = GRANTED ~= '' and (few == 0 or call('LLEN', HAND) + call('LLEN', JOBS) == 0 and not shared)
local want, allowed = tonumber(WANT), math.huge
allowed = permits_for(idle and '' or GRANTED) -- if gated
local done, why = pcall(function()
  if few > 0 then claim_up_to(math.min(want, allowed, few)) end
  let_through(#taken) -- if with_breaker
  give_permits(taken, LEASE_US) -- if gated
end)
if not done then
  give_back()
  return type(why) == 'table' and why or redis.error_reply(tostring(why))
end
if shared then
-- include: worker.queue:feed_shares.lua
  feed_shares()
end
local left = call('LLEN', JOBS) + call('LLEN', HAND) + (shared and shares().waiting() or 0)
local shut = left > 0 and #taken < want and bytes < MOST_BYTES and #dropped < MOST_DROPPED and suspended == 0
for n = 1, math.min(#dropped, LOGGED) do taken[#taken + 1] = dropped[n] end
return { format('%d', now), left, suspended, shut and 1 or 0, unpack(taken) }
