-- withdraw.lua: take jobs off a queue; those that run are told to stop.
-- KEYS   queue
-- ARGV   ttl in seconds of what is left of a job, then job ids
-- REPLY  for each job: the status it had, or ''
local call = redis.call
local reply = {}
for i = 2, #ARGV do
  local key = 'rq:job:' .. ARGV[i]
  local job = call('HMGET', key, 'status', 'worker_name')
  if job[1] == 'queued' then
    call('LREM', KEYS[1], 1, ARGV[i])
    call('HSET', key, 'status', 'canceled')
    call('EXPIRE', key, ARGV[1])
  elseif job[1] == 'started' and job[2] then
    call('PUBLISH', 'rq:pubsub:' .. job[2],
      cjson.encode({ command = 'stop-job', job_id = ARGV[i] }))
  end
  reply[#reply + 1] = job[1] or ''
end
return reply
