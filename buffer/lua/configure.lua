-- configure.lua: a task's settings: written where absent, or in force when `enforce` is 1.
-- KEYS   root
-- ARGV   enforce, then name value pairs; without one called `asked` what is there under it stays:
--        the settings that an operator gave, as JSON, over which a rollout's own come
-- REPLY  the settings now in force, flat
-- include: fixed.lua
local config = ROOT .. ':config'
if ENFORCE == '1' or redis.call('EXISTS', config) == 0 then
  redis.call('HSET', config, unpack(ARGV, REST))
  persist() -- an idle task is awake again
  redis.call('HDEL', config, 'idle')
end
return redis.call('HGETALL', config)
