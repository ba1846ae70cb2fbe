-- enter.lua: a rollout of this server is still being prepared, runs, or has ended.
-- KEYS   rollout
-- ARGV   owner lease_ms digest state(preparing | running | finished | failed)
-- REPLY  1, or 0 when it was replaced meanwhile
local stamp = redis.call('TIME')
local now = stamp[1] * 1000 + math.floor(stamp[2] / 1000)
local had = redis.call('HMGET', ROLLOUT, 'owner', 'digest')
if had[1] ~= OWNER or had[2] ~= DIGEST then return 0 end
redis.call('HSET', ROLLOUT, 'state', STATE, 'until', now + LEASE_MS)
if STATE == 'finished' or STATE == 'failed' then redis.call('EXPIRE', ROLLOUT, 7 * 86400) end
return 1
