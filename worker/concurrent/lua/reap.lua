-- reap.lua: run again what dead workers left: their executions and what was in their hands.
-- KEYS   jobs wip work running workers executions sought
-- ARGV   lease_us keep_s bound(deaths that a job without a Retry survives)
-- REPLY  {requeued, taken back from hands,
--         {id, execution, {field, value, …}} of each that has died too often, leased to us to fail it}
-- include: clock.lua
-- include: putting_back.lua
-- include: worker.queue:feed_shares.lua
local MOST = 200 -- of a kind in one call; what is left is found by the next heartbeat
local requeued, from_hands, condemned = 0, 0, {}

-- include: tries_after_deaths.lua

local function take_over(id)
  local execution = next_fence()
  call('ZADD', RUNNING, now + LEASE_US, id .. ':' .. execution)
  call('ZADD', WIP, seconds + KEEP_S, id .. ':' .. execution)
  call('HSET', WORK, 'fence', format('%d', fence))
  call('HSET', job_key(id), 'penstock_execution', execution)
  condemned[#condemned + 1] = { id, execution, call('HGETALL', job_key(id)) }
end

-- Its worker may be alive, but disconnected or frozen.
local function leave(member)
  local worker = try('HGET', 'rq:execution:' .. member, 'worker_name')
  if type(worker) ~= 'string' then return end
  try('SREM', 'rq:worker:' .. worker .. ':executions', member)
  rest('rq:worker:' .. worker, 'rq:worker:' .. worker .. ':executions')
end

-- A job that is leased but was not begun was taken off its list, or was about to be: it is listed
-- again, perhaps twice. Whoever claims the second one drops it.
local function run_again(member)
  local id, execution = string.match(member, '^(.*):(%d+)$')
  if not id then return call('ZREM', RUNNING, member) end
  local known, status = field(id, 'penstock_execution') or '', field(id, 'status')
  if known == execution and status ~= 'canceled' and not spared(id, execution, tonumber(BOUND)) then
    take_over(id)
  elseif known == execution or (known == '' and status == 'queued') then
    requeued = requeued + put_back(id)
  end
  leave(member)
  forget(id, execution)
end

local expired = call('ZRANGEBYSCORE', RUNNING, '-inf', now, 'LIMIT', 0, MOST)
for i = #expired, 1, -1 do run_again(expired[i]) end

-- A worker blocks on its queue with a BLMOVE into its hand, and the server may still move a job
-- there when the worker is dead or frozen. So this looks into each hand for a minute after the
-- worker's lease, when that BLMOVE is over (parking.py), and forgets only a worker whose hand is empty.
local function look_into_hands()
  local dead = call('ZRANGEBYSCORE', WORKERS, '-inf', now, 'WITHSCORES')
  for i = 1, #dead, 2 do
    if from_hands >= MOST then return end
    from_hands = from_hands + empty_hand(WORK .. ':hand:' .. dead[i])
    if tonumber(dead[i + 1]) <= now - 60000000 then
      call('ZREM', WORKERS, dead[i])
      call('SREM', 'rq:workers:' .. string.sub(JOBS, 10), 'rq:worker:' .. dead[i]) -- no stock worker
    end
  end
end
look_into_hands()
if call('SET', SOUGHT, 1, 'NX', 'EX', 10) then shares().find_refilled() end
feed_shares()
tally('requeued', requeued)
return { requeued, from_hands, unpack(condemned) }
