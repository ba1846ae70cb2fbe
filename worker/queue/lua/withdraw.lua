-- withdraw.lua: take jobs off a queue; those that run get a command to stop.
-- KEYS   jobs
-- ARGV   ttl_s(of what is left of a job) reply_to(of the process that asks),
--        then for each job: id submission how('cancel'|'abandon'|'again')
-- REPLY  for each job: the status it had, or ''; where nothing is left to do, ''
--
-- An `abandon` leaves a job alone that another process has asked for since; each leaves a job
-- alone that its own process has submitted again since. `again` repeats a stop that got lost.
-- Where there is no job yet a mark is left, for an enqueue that arrives later: by a direct line's
-- connection, which nobody waits for.
local call = redis.call
-- include: shares.lua
local reply = {}

-- A share is not charged for a job that is not run.
local function take_off(id, share)
  local list = shares.list_of(share or '')
  if call('LREM', list, 1, id) == 1 then
    if share and call('LLEN', list) == 0 then shares.emptied(share) end
  elseif share and call('LREM', JOBS, 1, id) == 1 then
    shares.refund(share)
  end
end

local function cancel(key, id, known, share)
  take_off(id, share)
  call('HSET', key, 'status', 'canceled')
  call('EXPIRE', key, known and TTL_S or 60)
end

-- The mark is for its worker's heartbeat, should the command get lost.
local function stop(key, id, worker)
  call('HSET', key, 'penstock_unwanted', 'cancelled')
  if worker then
    call('PUBLISH', 'rq:pubsub:' .. worker, cjson.encode({ command = 'stop-job', job_id = id }))
  end
end

local function withdraw(id, submission, how)
  local key = 'rq:job:' .. id
  local job = redis.pcall('HMGET', key, 'status', 'worker_name', 'penstock_reply_to',
    'penstock_submission', 'penstock_unwanted', 'penstock_share')
  if job.err then return '' end -- a key of another type
  local status, mine = job[1], job[3] == REPLY_TO
  if mine and tonumber(job[4] or 0) > tonumber(submission) then return '' end
  if how == 'abandon' and status and not mine then return '' end
  if how == 'again' and job[5] ~= 'cancelled' then return '' end
  if not status or mine then -- copies of what was submitted until now are late
    call('HSET', key, 'penstock_reply_to', REPLY_TO, 'penstock_submission', submission)
  end
  if not status or status == 'queued' then
    cancel(key, id, status, job[6])
  elseif status == 'started' then
    stop(key, id, job[2])
  end
  return status or ''
end

for id, submission, how in each_job() do reply[#reply + 1] = withdraw(id, submission, how) end
shares.feed()
return reply
