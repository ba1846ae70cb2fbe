-- pause.lua: pause a queue, or resume it. Its workers that wait for that are woken by RQ's channel.
-- KEYS   work workers
-- ARGV   paused(1|0)
-- REPLY  workers that were woken
local call = redis.call
if PAUSED == '1' then
  call('HSET', WORK, 'paused', 1)
  return 0
end
call('HDEL', WORK, 'paused')
local names = call('ZRANGE', WORKERS, 0, -1)
for _, name in ipairs(names) do call('PUBLISH', 'rq:pubsub:' .. name, '{"command": "look"}') end
return #names
