-- clock.lua: Redis' time, read once.
local stamp = redis.call('TIME')
