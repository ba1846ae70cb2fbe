-- finish.lua: record how executions ended, and notify the clients that wait for them. A later result
-- of the same job is refused.
-- KEYS   jobs wip work running worker executions
-- ARGV   name, then for each: id execution
--        how(1: a function's end|a word for how its program ended, of worker/outcomes.py
--        |0: a failure|bare: a failure, whatever else the job has)
--        ttl_s payload started_s waited_s('' if unknown) notice('' or the result as JSON) hold_us(and a report)
-- REPLY  for each: 1 recorded | 0 its lease is not this worker's any more | 2 it has dependents: RQ's way
--         | 3 put off: it has no outcome, the breaker is open, and it waits in its queue again
-- include: clock.lua or gated.lua
-- include: records.lua
-- include: worker.queue:next_share.lua
-- include: counts.lua
-- include: with_breaker.lua if with_breaker
-- include: putting_off.lua if with_breaker

-- The result as RQ keeps it, and a notice.
local STREAM_TTL = 3600
local notified = {}

local function record(id, execution, ok, payload, started, ttl)
  local results = 'rq:results:' .. id
  local entry = { 'type', ok and 1 or 2, 'worker_name', NAME, 'execution_id', execution,
    'execution_started_at', started, 'execution_ended_at', in_seconds }
  if payload ~= '' then
    entry[11], entry[12] = ok and 'return_value' or 'exc_string', payload
  end
  local added = try('XADD', results, 'MAXLEN', '~', 10, '*', unpack(entry))
  if type(added) == 'table' and added.err then -- a key of another type is in its place
    call('DEL', results)
    call('XADD', results, '*', unpack(entry))
  end
  if ttl > 0 then call('EXPIRE', results, ttl) else call('PERSIST', results) end
end

local function notify_client(reply_to, id, status, result)
  if not reply_to then return end
  local entry = { 'job', id, 'status', status }
  if result ~= '' then entry[5], entry[6] = 'result', result end
  try('XADD', reply_to, 'MAXLEN', '~', 10000, '*', unpack(entry))
  notified[reply_to] = true
end

local function keep_notices()
  for stream in pairs(notified) do call('EXPIRE', stream, STREAM_TTL) end
end

-- A batch of ends in RQ's registries, and in the worker's and the queue's figures.
local registered = { [true] = {}, [false] = {} }

local function sum_up()
  local queue = string.sub(JOBS, 10) -- rq:queue:<name>
  if #registered[true] > 0 then call('ZADD', 'rq:finished:' .. queue, unpack(registered[true])) end
  if #registered[false] > 0 then call('ZADD', 'rq:failed:' .. queue, unpack(registered[false])) end
  write_counts()
end

-- The end of one execution, as RQ writes it, only while this worker has its lease.
local moment, members, gone, dependents = rq_time(), {}, {}, false

-- Most jobs have none: one command for the whole batch.
local function look_for_dependents(ids)
  local keys = {}
  for n, id in ipairs(ids) do keys[n] = job_key(id) .. ':dependents' end
  dependents = #keys > 0 and call('EXISTS', unpack(keys)) > 0
end

-- Another worker has the job; or it was deleted while it ran, and enqueued again.
local function refuse(id, execution, leased, started, hold_us)
  note_drop(id, 'refused')
  if leased then
    hear('', started, id .. ':' .. execution) -- if with_breaker
    free_permit(id .. ':' .. execution, hold_us) -- if gated
    forget(id, execution)
  end
  return 0
end

local function finish(id, execution, how, ttl, payload, started, waited, notice, hold_us)
  local ok = how ~= '0' and how ~= 'bare'
  local program = ok and how ~= '1' and how or ''
  local key, member, status = job_key(id), id .. ':' .. execution, ok and 'finished' or 'failed'
  local job = try('HMGET', key, 'origin', 'penstock_execution', 'penstock_reply_to', 'dependency_ids',
    'penstock_deaths', 'penstock_charged', 'penstock_share', 'penstock_ended')
  local again = job[8] == execution -- recorded already, and the reply got lost or the script stopped
  if job[1] and job[2] ~= execution then
    local leased = call('ZSCORE', RUNNING, member)
    if not again then return refuse(id, execution, leased, started, hold_us) end
    if not leased then return 1 end
  end
  if dependents and how ~= 'bare' and call('EXISTS', key .. ':dependents') == 1 then return 2 end
  if job[1] and not again and hear(program, started, member) then return put_off(id, execution, hold_us) end -- if with_breaker
  if not job[1] then -- it was deleted while it ran: it counts once, while it has its lease
    if not call('ZSCORE', RUNNING, member) then return 0 end
    hear('', started, member) -- if with_breaker
  end
  local n = #members
  members[n + 1], gone[2 * n + 1], gone[2 * n + 2] = member, 'rq:execution:' .. member, 'rq:executions:' .. id
  if job[1] then
    if not again then record(id, execution, ok, payload, started, ttl) end
    if ttl > 0 then call('EXPIRE', key, ttl) end
    if ttl > 0 and job[4] then call('EXPIRE', job_key(':' .. id .. ':dependencies'), ttl) end
    call('HSET', key, 'status', status, 'ended_at', moment, 'penstock_execution', '',
      'penstock_ended', execution, 'penstock_outcome', (word_of(program)))
    if job[5] then call('HDEL', key, 'penstock_deaths', 'penstock_died') end -- after a requeue the count starts at 0
    if tonumber(job[6]) and not again then shares().settle(job[7] or '', tonumber(job[6]), now / 1000000 - started) end
    local registry = registered[ok]
    registry[#registry + 1], registry[#registry + 2] = ttl > 0 and seconds + ttl or '+inf', id
  end
  notify_client(job[3], id, status, notice)
  free_permit(member, hold_us) -- if gated
  if again then return 1 end
  add(totals, status, 1)
  add(of_worker, ok and 'successful_job_count' or 'failed_job_count', 1)
  add(of_worker, 'total_working_time', now / 1000000 - started)
  if ok then count_job(program, started, waited) end
  return 1
end

local ids, reply = {}, {}
for id in each() do ids[#ids + 1] = id end
look_for_dependents(ids)
for id, execution, how, ttl, payload, started, waited, notice, hold_us in each() do
  reply[#reply + 1] = finish(id, execution, how, tonumber(ttl), payload, started, waited, notice, hold_us)
end
keep_notices()
sum_up()
obey() -- if with_breaker
pass_on() -- if gated
if #members > 0 then -- the lease is the last to go: until then an end that was cut off is repeated
  call('ZREM', WIP, unpack(members))
  call('SREM', EXECUTIONS, unpack(members))
  call('DEL', unpack(gone))
  call('ZREM', RUNNING, unpack(members))
end
rest(WORKER, EXECUTIONS)
if put_off_any then feed_shares() end -- if with_breaker
return reply
