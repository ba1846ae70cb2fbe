-- tries_after_deaths.lua: how often a job runs again whose workers died: as its own retries say, else `job_deaths`
-- times. A job whose function failed is retried by RQ's code: `end_or_retry_by_rq.py`.

-- Whether it may run once more; counts this death.
local function spared(id, execution, bound)
  local key = job_key(id)
  local deaths = (whole(field(id, 'penstock_deaths')) or 0) + 1
  local retries = whole(field(id, 'retries_left')) or -1
  call('HSET', key, 'penstock_deaths', deaths, 'penstock_died', execution .. ' ' .. in_seconds)
  if retries > 0 then call('HSET', key, 'retries_left', retries - 1) end
  return retries > 0 or (retries < 0 and deaths <= bound)
end
