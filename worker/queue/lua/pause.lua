-- pause.lua: pause a queue by hand, or resume it, whatever its breaker says.
-- KEYS   work workers
-- ARGV   paused(1|0)
-- REPLY  workers that were woken
local call = redis.call
-- include: wake_workers.lua
if PAUSED == '1' then
  call('HDEL', WORK, 'paused_why')
  call('HSET', WORK, 'paused', 1)
  return 0
end
call('HDEL', WORK, 'paused', 'paused_why')
return wake_workers(WORKERS)
