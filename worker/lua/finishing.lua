-- finishing.lua: the ends of executions, as RQ writes them, each only while its lease is ours.
-- Reads worker, idle(1|0) and then for each: id execution ok(1|0) ttl_s payload started notice
-- hold_us, from ARGV[OFF + 1] on. `free_permit(member, hold_us)` is the includer's.
-- include: records.lua
local NAME = ARGV[OFF + 1]
local moment, worked, failures, successes = rq_time(), 0, 0, 0
local members, registered = {}, { [true] = {}, [false] = {} }

local function record(id, execution, ok, payload, started, ttl)
  local results = 'rq:results:' .. id
  local entry = { 'type', ok and 1 or 2, 'worker_name', NAME, 'execution_id', execution,
    'execution_started_at', started, 'execution_ended_at', format('%.6f', now / 1000000) }
  if payload ~= '' then
    entry[#entry + 1] = ok and 'return_value' or 'exc_string'
    entry[#entry + 1] = payload
  end
  call('XADD', results, 'MAXLEN', '~', 10, '*', unpack(entry))
  if ttl > 0 then call('EXPIRE', results, ttl) else call('PERSIST', results) end
end

local function tell(reply_to, id, status, result)
  if not reply_to then return end
  local entry = { 'job', id, 'status', status }
  if result ~= '' then entry[5], entry[6] = 'result', result end
  call('XADD', reply_to, 'MAXLEN', '~', 10000, '*', unpack(entry))
  call('EXPIRE', reply_to, 3600)
end

local function finish(id, execution, ok, ttl, payload, started, notice, hold_us)
  local key, member, status = job_key(id), id .. ':' .. execution, ok and 'finished' or 'failed'
  local job = call('HMGET', key, 'origin', 'penstock_execution', 'penstock_reply_to', 'dependency_ids')
  if job[1] and job[2] ~= execution then return 0 end
  if call('EXISTS', key .. ':dependents') == 1 then return 2 end
  members[#members + 1] = member
  call('DEL', 'rq:execution:' .. member, 'rq:executions:' .. id)
  free_permit(member, hold_us)
  if job[1] then -- else it was deleted while it ran
    call('HSET', key, 'status', status, 'ended_at', moment)
    call('HDEL', key, 'penstock_execution')
    record(id, execution, ok, payload, started, ttl)
    local registry = registered[ok]
    registry[#registry + 1] = ttl > 0 and seconds + ttl or '+inf'
    registry[#registry + 1] = id
    if ttl > 0 then
      call('EXPIRE', key, ttl)
      if job[4] then call('EXPIRE', key .. ':dependencies', ttl) end
    end
  end
  tell(job[3], id, status, notice)
  worked = worked + now / 1000000 - started
  if ok then successes = successes + 1 else failures = failures + 1 end
  return 1
end

local function finish_all()
  local reply = {}
  for i = OFF + 3, #ARGV, 8 do
    reply[#reply + 1] = finish(ARGV[i], ARGV[i + 1], ARGV[i + 2] == '1', tonumber(ARGV[i + 3]),
      ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], tonumber(ARGV[i + 7]))
  end
  if #members > 0 then
    call('ZREM', RUNNING, unpack(members))
    call('ZREM', WIP, unpack(members))
    call('SREM', EXECUTIONS, unpack(members))
  end
  local queue = string.sub(JOBS, 10) -- rq:queue:<name>
  if #registered[true] > 0 then call('ZADD', 'rq:finished:' .. queue, unpack(registered[true])) end
  if #registered[false] > 0 then call('ZADD', 'rq:failed:' .. queue, unpack(registered[false])) end
  if call('EXISTS', WORKER) == 1 then
    if successes > 0 then call('HINCRBY', WORKER, 'successful_job_count', successes) end
    if failures > 0 then call('HINCRBY', WORKER, 'failed_job_count', failures) end
    call('HINCRBYFLOAT', WORKER, 'total_working_time', format('%.6f', worked))
    if ARGV[OFF + 2] == '1' then call('HSET', WORKER, 'state', 'idle') end
  end
  tally('finished', successes)
  tally('failed', failures)
  return reply
end
