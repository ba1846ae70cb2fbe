-- enter.lua: a rollout of ours is prepared and runs, or has ended.
-- KEYS   rollout
-- ARGV   owner lease_ms digest state (running | finished | failed)
-- REPLY  1, or 0 when it was replaced meanwhile
local stamp = redis.call('TIME')
local now = stamp[1] * 1000 + math.floor(stamp[2] / 1000)
local had = redis.call('HMGET', KEYS[1], 'owner', 'digest')
if had[1] ~= ARGV[1] or had[2] ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[4], 'until', now + ARGV[2])
if ARGV[4] ~= 'running' then redis.call('EXPIRE', KEYS[1], 7 * 86400) end
return 1
