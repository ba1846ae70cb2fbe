-- dismiss.lua: a rollout of ours has ended.
-- KEYS   rollout
-- ARGV   owner lease_ms digest state
-- REPLY  1, or 0 when it was replaced meanwhile
local had = redis.call('HMGET', KEYS[1], 'owner', 'digest')
if had[1] ~= ARGV[1] or had[2] ~= ARGV[3] then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[4])
redis.call('EXPIRE', KEYS[1], 7 * 86400)
return 1
