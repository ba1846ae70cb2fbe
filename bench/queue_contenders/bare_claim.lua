-- bare_claim.lua: what a claim writes for RQ's readers alone: no lease, no fence, no question.
-- KEYS   jobs wip executions
-- ARGV   how_many ttl_s expiry_s now (as RQ writes it) now_s worker
-- REPLY  {id, execution, {field, value, …}} each
local call = redis.call
local how_many, ttl, expiry, moment, seconds, worker = unpack(ARGV)
local taken, wip, members, execution = {}, {}, {}, '1790000000000000'
for n, id in ipairs(call('LPOP', KEYS[1], how_many) or {}) do
  local member, job = id .. ':' .. execution, call('HGETALL', 'rq:job:' .. id)
  call('HSET', 'rq:job:' .. id, 'status', 'started', 'started_at', moment, 'last_heartbeat', moment,
    'worker_name', worker)
  call('HSET', 'rq:execution:' .. member, 'worker_name', worker, 'created_at', seconds, 'last_heartbeat', seconds)
  call('EXPIRE', 'rq:execution:' .. member, ttl)
  call('ZADD', 'rq:executions:' .. id, expiry, execution)
  call('EXPIRE', 'rq:executions:' .. id, ttl)
  members[n], wip[2 * n - 1], wip[2 * n], taken[n] = member, expiry, member, { id, execution, job }
end
if #members > 0 then
  call('ZADD', KEYS[2], unpack(wip))
  call('SADD', KEYS[3], unpack(members))
end
return taken
