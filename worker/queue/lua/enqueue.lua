-- enqueue.lua: put jobs on a queue, each once however often it is sent: its id is its caller's token.
-- KEYS   queues jobs
-- ARGV   reply_to abandon('' to keep) share('' for none) how_many_shared, then for each shared: field value,
--        then for each job: id timeout description correlation data submission
--        traceparent('' if its caller does not trace)
-- REPLY  for each job: 'new', or the status of the one that has its id already; 'stopping' where
--        that is being stopped, so that this one has to be sent again when it has ended;
--        'unreadable' where it is no job
--
-- The hash is RQ's own; what begins with penstock_ is for our side, and RQ leaves it alone.
-- A job that was cancelled or stopped is begun again by a later submission, never by a late copy
-- of one from before.
local call = redis.call
-- include: try.lua
-- include: next_share.lua
local NAME = string.sub(JOBS, 10) -- rq:queue:<name>
if SHARE ~= '' and not shares().admit(SHARE) then SHARE = '' end
local hash = { 'penstock_reply_to', REPLY_TO }
if ABANDON ~= '' then hash[3], hash[4] = 'penstock_abandon', ABANDON end
if SHARE ~= '' then hash[#hash + 1], hash[#hash + 2] = 'penstock_share', SHARE end
for field, value in each_shared() do hash[#hash + 1], hash[#hash + 2] = field, value end
local ids, standing, reply = {}, {}, {}

-- Mostly all jobs are new, and their queue has no shares, which one command says.
local keys = { 'penstock:work:{' .. NAME .. '}:shares' }
for id in each_job() do keys[#keys + 1] = 'rq:job:' .. id end
local plain = SHARE == '' and call('EXISTS', unpack(keys)) == 0

local function cleared(id)
  call('DEL', 'rq:job:' .. id, 'rq:results:' .. id)
  call('ZREM', 'rq:failed:' .. NAME, id)
  call('ZREM', 'rq:canceled:' .. NAME, id)
  return 'new'
end

local function is_late(reply_to, known, submission)
  return reply_to == REPLY_TO and tonumber(submission) <= tonumber(known or 0)
end

local function standing_of(id, submission)
  local job = try('HMGET', 'rq:job:' .. id, 'status', 'penstock_reply_to',
    'penstock_submission', 'penstock_unwanted')
  if job.err then return 'unreadable' end -- a key of another type
  local status, unwanted = job[1], job[4]
  if not status then return 'new' end
  local late = is_late(job[2], job[3], submission)
  if status == 'canceled' or status == 'stopped' then
    return (late and unwanted ~= 'orphaned') and status or cleared(id)
  end
  local stopping = unwanted == 'cancelled' or unwanted == 'orphaned'
  return status == 'started' and stopping and not late and 'stopping' or status
end

-- Asked for again, perhaps by a trainer that was restarted: the notice goes to the latest asker.
local function adopt(key, submission)
  local known = call('HMGET', key, 'penstock_reply_to', 'penstock_submission')
  if is_late(known[1], known[2], submission) then return end
  call('HSET', key, 'penstock_reply_to', REPLY_TO, 'penstock_submission', submission)
  call('HDEL', key, 'penstock_unwanted')
  if ABANDON ~= '' and call('HEXISTS', key, 'penstock_abandon') == 1 then
    call('HSET', key, 'penstock_abandon', ABANDON)
  else
    call('HDEL', key, 'penstock_abandon')
  end
end

-- The notice of its end goes to who waits for that; then nothing of this is a late copy.
local function wait_for_its_end(key)
  call('HSET', key, 'penstock_reply_to', REPLY_TO)
  call('HDEL', key, 'penstock_submission')
end

local function create(key, timeout, description, correlation, data, submission, traceparent)
  call('HSET', key, 'timeout', timeout, 'description', description, 'penstock_correlation', correlation,
    'data', data, 'penstock_submission', submission, unpack(hash))
  if traceparent ~= '' then call('HSET', key, 'penstock_traceparent', traceparent) end
end

-- What may be refused comes first: a hash that is in no queue would never run, and be taken for
-- a job when it is sent again.
for id, _, _, _, _, submission in each_job() do
  if not standing[id] then
    standing[id] = plain and 'new' or standing_of(id, submission)
    if standing[id] == 'new' then ids[#ids + 1] = id end
  end
end
call('SADD', QUEUES, JOBS)
if #ids > 0 then call('RPUSH', list_of(SHARE), unpack(ids)) end
if #ids > 0 and SHARE ~= '' then shares().join(SHARE) end
for id, timeout, description, correlation, data, submission, traceparent in each_job() do
  local key, status = 'rq:job:' .. id, standing[id]
  reply[#reply + 1] = status
  if status == 'new' then
    create(key, timeout, description, correlation, data, submission, traceparent)
    standing[id] = 'queued'
  elseif status == 'stopping' then
    wait_for_its_end(key)
  elseif status ~= 'unreadable' then
    adopt(key, submission)
  end
end
if not plain then
-- include: feed_shares.lua
  feed_shares()
end
return reply
