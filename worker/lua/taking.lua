-- taking.lua: up to so many jobs from the hand, then from the queue.
-- include: claiming.lua
local dropped = 0

local function take_or_drop(id)
  local flat, job = call('HGETALL', job_key(id)), {}
  for i = 1, #flat, 2 do job[flat[i]] = flat[i + 1] end
  if unwanted(id, job) then dropped = dropped + 1 else claim(id, job, flat) end
end

local function claim_up_to(want)
  while #taken < want do
    local ids = call('LPOP', HAND, want - #taken) or call('LPOP', JOBS, want - #taken)
    if not ids or #ids == 0 then break end
    for _, id in ipairs(ids) do take_or_drop(id) end
  end
  if #taken > 0 then
    call('ZADD', RUNNING, unpack(running))
    call('ZADD', WIP, unpack(wip))
    call('SADD', EXECUTIONS, unpack(members))
    call('EXPIRE', EXECUTIONS, KEEP)
    call('HSET', WORK, 'fence', format('%.0f', fence))
    call('HSET', WORKER, 'state', 'busy')
  end
  tally('claimed', #taken)
  tally('dropped', dropped)
end

local function suspended() return call('EXISTS', 'rq:suspended') == 1 end
