-- condemning.lua: how often a job may lose its worker, and what becomes of it then.
-- Needs LEASE and KEEP; `bound` are the deaths that a job without a Retry survives.
-- include: records.lua
local condemned = {}

-- Whether it may run once more; counts this death.
local function spared(key, bound)
  local deaths = call('HINCRBY', key, 'penstock_deaths', 1)
  local retries = tonumber(call('HGET', key, 'retries_left') or -1)
  if retries > 0 then call('HINCRBY', key, 'retries_left', -1) end
  return retries > 0 or (retries < 0 and deaths <= bound)
end

local function take_over(id)
  local execution = next_fence()
  call('HSET', job_key(id), 'penstock_execution', execution)
  call('ZADD', RUNNING, now + LEASE, id .. ':' .. execution)
  call('ZADD', WIP, seconds + KEEP, id .. ':' .. execution)
  call('HSET', WORK, 'fence', format('%.0f', fence))
  condemned[#condemned + 1] = { id, execution, call('HGETALL', job_key(id)) }
end
