-- reap.lua: run again what dead workers left: their executions and what was in their hands.
-- KEYS   jobs wip work leases workers executions
-- ARGV   lease_us keep_s worker bound (deaths that a job without a Retry survives)
-- REPLY  {requeued, taken back from hands,
--         {id, execution, {field, value, …}} of each that has died too often, leased to us to fail it}
local JOBS, WIP, WORK, RUNNING, WORKERS, EXECUTIONS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
-- include: clock.lua
-- include: putting_back.lua
local LEASE, KEEP = ARGV[1], tonumber(ARGV[2])
-- include: condemning.lua
local requeued, from_hands = 0, 0

local expired = call('ZRANGEBYSCORE', RUNNING, '-inf', now, 'LIMIT', 0, 200)
for i = #expired, 1, -1 do
  local id, execution = string.match(expired[i], '^(.*):(%d+)$')
  forget(id, execution)
  if call('HGET', job_key(id), 'penstock_execution') == execution then
    if spared(job_key(id), tonumber(ARGV[4])) then
      put_back(id)
      requeued = requeued + 1
    else
      take_over(id)
    end
  end
end
-- What a worker blocked on, the server may still put into its hand when it is dead or frozen;
-- that what was just put back, for one. So it is looked at until that is over (parking.py).
for _, worker in ipairs(call('ZRANGEBYSCORE', WORKERS, '-inf', now, 'LIMIT', 0, 200)) do
  from_hands = from_hands + empty_hand(WORK .. ':hand:' .. worker)
end
call('ZREMRANGEBYSCORE', WORKERS, '-inf', now - 60000000)
tally('requeued', requeued)
return { requeued, from_hands, unpack(condemned) }
