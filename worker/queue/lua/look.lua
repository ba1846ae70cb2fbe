-- look.lua: what has become of jobs.
-- KEYS   workers jobs
-- ARGV   for each job: id
-- REPLY  {live workers of the queue, jobs waiting if there are none, then for each job: its status, '', 'orphaned'
--         (ended because its client was taken for dead) or 'unreadable'; its last result or {};
--         with a breaker, the state of one that is not closed and what it has counted, or '' and ''}
local call = redis.call
-- include: try.lua
-- include: feed_shares.lua
local live = 0
for _, worker in ipairs(call('SMEMBERS', WORKERS)) do live = live + call('EXISTS', worker) end
feed_shares() -- for RQ's own workers, should they have missed a turn
local reply = { live, live == 0 and shares().jobs() or 0 }
for id in each_job() do
  -- A key of another type is an answer for this job alone, not an error for all.
  local job = try('HMGET', 'rq:job:' .. id, 'status', 'penstock_unwanted')
  local found = try('XREVRANGE', 'rq:results:' .. id, '+', '-', 'COUNT', 1)
  if job.err or found.err then job, found = { 'unreadable' }, {} end
  local over = job[1] == 'canceled' or job[1] == 'stopped'
  reply[#reply + 1] = over and job[2] == 'orphaned' and 'orphaned' or job[1] or ''
  reply[#reply + 1] = found[1] and found[1][2] or {}
end
-- include: paused_by.lua if breaks
return reply
