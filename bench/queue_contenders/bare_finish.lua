-- bare_finish.lua: what the ends of jobs write for RQ's readers alone.
-- KEYS   wip executions finished
-- ARGV   ttl_s expiry_s now (as RQ writes it) now_s worker, then for each: id execution
-- REPLY  how many
local call = redis.call
local ttl, expiry, moment, seconds, worker = unpack(ARGV, 1, 5)
local members, gone, ended = {}, {}, {}
for i = 6, #ARGV, 2 do
  local id, execution, n = ARGV[i], ARGV[i + 1], #members
  local member = id .. ':' .. execution
  call('HSET', 'rq:job:' .. id, 'status', 'finished', 'ended_at', moment)
  call('XADD', 'rq:results:' .. id, 'MAXLEN', '~', '10', '*', 'type', '1', 'worker_name', worker,
    'execution_id', execution, 'execution_started_at', seconds, 'execution_ended_at', seconds)
  call('EXPIRE', 'rq:results:' .. id, ttl)
  call('EXPIRE', 'rq:job:' .. id, ttl)
  members[n + 1], gone[2 * n + 1], gone[2 * n + 2] = member, 'rq:execution:' .. member, 'rq:executions:' .. id
  ended[2 * n + 1], ended[2 * n + 2] = expiry, id
end
call('ZREM', KEYS[1], unpack(members))
call('SREM', KEYS[2], unpack(members))
call('DEL', unpack(gone))
call('ZADD', KEYS[3], unpack(ended))
return #members
