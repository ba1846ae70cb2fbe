-- beating.lua: a worker lives, and so do its executions of one queue, with their permits.
-- Reads lease_us keep_s worker now, and then for each: id execution fence term_us, from
-- ARGV[OFF + 1] on. `keep_permit(member, fence, term_us)` is the includer's.
local function beat()
  local lease, keep, reply = now + ARGV[OFF + 1], tonumber(ARGV[OFF + 2]), {}
  local until_s = math.floor(now / 1000000) + keep
  call('ZADD', WORKERS, lease, ARGV[OFF + 3])
  for i = OFF + 5, #ARGV, 4 do
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
        call('HSET', 'rq:job:' .. id, 'last_heartbeat', ARGV[OFF + 4])
      end
      keep_permit(member, ARGV[i + 2], ARGV[i + 3])
    end
    reply[#reply + 1] = held and 1 or 0
  end
  return reply
end
