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
-- include: try.lua
-- include: feed_shares.lua
local reply, withdrawn = {}, {} -- of each share, with '' for none: the ids to take off

-- Each LREM reads the list. So many ids are found in one reading of it, page by page, and what
-- marks them is removed by one LREM. Returns those that were there.
local FEW, PAGE, MARK = 8, 1000, 'penstock:withdrawn'
local function take_off(list, ids)
  local wanted, left, there = {}, #ids, {}
  if left <= FEW then
    for _, id in ipairs(ids) do there[id] = call('LREM', list, 1, id) == 1 or nil end
    return there
  end
  for _, id in ipairs(ids) do wanted[id] = true end
  for from = 0, call('LLEN', list) - 1, PAGE do
    for n, id in ipairs(call('LRANGE', list, from, from + PAGE - 1)) do
      if wanted[id] and not there[id] then
        call('LSET', list, from + n - 1, MARK)
        there[id], left = true, left - 1
      end
    end
    if left == 0 then break end
  end
  if next(there) then call('LREM', list, 0, MARK) end
  return there
end

-- A share is not charged for a job that is not run.
local function take_off_all()
  for share, ids in pairs(withdrawn) do
    local list, served = list_of(share), {}
    local there = take_off(list, ids)
    if share ~= '' then
      if next(there) and call('LLEN', list) == 0 then shares().emptied(share) end
      for _, id in ipairs(ids) do
        if not there[id] then served[#served + 1] = id end
      end
      for _ in pairs(take_off(JOBS, served)) do shares().refund(share) end
    end
  end
end

local function cancel(key, id, known, share)
  withdrawn[share or ''] = withdrawn[share or ''] or {}
  table.insert(withdrawn[share or ''], id)
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
  local job = try('HMGET', key, 'status', 'worker_name', 'penstock_reply_to',
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
take_off_all()
feed_shares()
return reply
