-- beat.lua: a worker lives, and so do its executions of one queue.
-- KEYS   wip leases workers
-- ARGV   lease_us keep_s worker now (as RQ writes it), then for each: id execution
-- REPLY  for each: 1 held | 0 lost
-- include: clock.lua
local WIP, RUNNING, WORKERS = KEYS[1], KEYS[2], KEYS[3]
local lease, keep, reply = now + ARGV[1], tonumber(ARGV[2]), {}
local until_s = math.floor(now / 1000000) + keep
call('ZADD', WORKERS, lease, ARGV[3])
for i = 5, #ARGV, 2 do
  local id, execution = ARGV[i], ARGV[i + 1]
  local member = id .. ':' .. execution
  local held = call('ZSCORE', RUNNING, member)
  if held then
    call('ZADD', RUNNING, lease, member)
    call('ZADD', WIP, 'XX', until_s, member)
    call('EXPIRE', 'rq:execution:' .. member, keep)
    call('HSET', 'rq:execution:' .. member, 'last_heartbeat', format('%.6f', now / 1000000))
    call('ZADD', 'rq:executions:' .. id, 'XX', until_s, execution)
    call('EXPIRE', 'rq:executions:' .. id, keep + 60)
    if call('EXISTS', 'rq:job:' .. id) == 1 then
      call('HSET', 'rq:job:' .. id, 'last_heartbeat', ARGV[4])
    end
  end
  reply[#reply + 1] = held and 1 or 0
end
return reply
