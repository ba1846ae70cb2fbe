-- watch.lua: renew a rollout of ours, or take over one whose server is gone.
-- KEYS   rollout
-- ARGV   owner lease_ms
-- REPLY  {digest, payload}: digest is empty when it is not ours, payload when it was ours before
local stamp = redis.call('TIME')
local now = stamp[1] * 1000 + math.floor(stamp[2] / 1000)
local had = redis.call('HMGET', KEYS[1], 'owner', 'state', 'until', 'digest', 'payload')
if had[2] ~= 'running' then return {'', ''} end
local mine = had[1] == ARGV[1]
if not mine and tonumber(had[3]) > now then return {'', ''} end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'until', now + ARGV[2])
return {had[4], mine and '' or had[5]}
