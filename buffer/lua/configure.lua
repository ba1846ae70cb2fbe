-- configure.lua: a task's settings: written where absent, or in force when `enforce` is 1.
-- KEYS   root
-- ARGV   enforce, then name value pairs
-- REPLY  the settings now in force, flat
-- include: fixed.lua
local config = KEYS[1] .. ':config'
if ARGV[1] == '1' or redis.call('EXISTS', config) == 0 then
  redis.call('DEL', config)
  redis.call('HSET', config, unpack(ARGV, 2))
  persist() -- an idle task is awake again
end
return redis.call('HGETALL', config)
