-- beat.lua: a worker lives, and so do its executions of one queue, each while it has the lease.
-- KEYS   wip running workers
-- ARGV   lease_us keep_s name moment(now, as RQ writes it),
--        then for each: id execution fence(of its permit; 0: none) hold_us
-- REPLY  for each: 1 held | 0 lost | 2 held, but its permit is lost
--         | 3 held, but nobody wants it: to be stopped
--
-- With a gate the permits live on, each for `hold_us` beyond its lease, and only with its execution:
-- an end takes the permit with it, and a heartbeat that was on its way must not bring that back.
-- include: clock.lua or gated.lua
-- include: records.lua
local lease, until_s = now + LEASE_US, seconds + KEEP_S

-- Its caller cancelled it (the command to stop it may have got lost), or its caller was gone at two
-- heartbeats in a row: the first one after an outage of Redis may be wrong.
local function is_unwanted(key, client, why)
  if why == 'cancelled' or why == 'orphaned' then return true end
  if is_orphan(client) then
    call('HSET', key, 'penstock_unwanted', why == 'missing' and 'orphaned' or 'missing')
    return why == 'missing'
  end
  if why then call('HDEL', key, 'penstock_unwanted') end
  return false
end

local function beat(id, execution, fence, hold_us)
  local member = id .. ':' .. execution
  if not call('ZSCORE', RUNNING, member) then return 0 end
  call('ZADD', RUNNING, lease, member)
  call('ZADD', WIP, 'XX', until_s, member)
  if call('EXPIRE', 'rq:execution:' .. member, KEEP_S) == 1 then -- else its job was deleted
    call('HSET', 'rq:execution:' .. member, 'last_heartbeat', format('%.6f', now / 1000000))
  end
  try('ZADD', 'rq:executions:' .. id, 'XX', until_s, execution)
  call('EXPIRE', 'rq:executions:' .. id, KEEP_S + 60)
  local key = job_key(id)
  local job = try('HMGET', key, 'origin', 'penstock_abandon', 'penstock_unwanted')
  if job[1] then call('HSET', key, 'last_heartbeat', MOMENT) end
  if not renew_permit(member, fence, lease + hold_us) then return 2 end -- if gated
  return job[1] and is_unwanted(key, job[2], job[3]) and 3 or 1
end

local reply = {}
-- A full Redis refuses a script's first write if it needs memory, and none after one that does not:
-- else the leases would end, and others would run again what runs here.
redis.pcall('ZREMRANGEBYSCORE', WORKERS, '-inf', '-inf')
call('ZADD', WORKERS, lease, NAME)
for id, execution, fence, hold_us in each() do
  reply[#reply + 1] = beat(id, execution, fence, hold_us)
end
return reply
