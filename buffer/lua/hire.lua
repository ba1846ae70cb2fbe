-- hire.lua: this server takes on a rollout, unless the identical one is running.
-- KEYS   rollout
-- ARGV   owner lease_ms digest payload
-- REPLY  1 when it is this server's to start, 0 when another has it running
local stamp = redis.call('TIME')
local now = stamp[1] * 1000 + math.floor(stamp[2] / 1000)
local had = redis.call('HMGET', KEYS[1], 'digest', 'state', 'until')
if had[1] == ARGV[3] and had[2] == 'running' and tonumber(had[3]) > now then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'digest', ARGV[3], 'payload', ARGV[4],
  'state', 'running', 'until', now + ARGV[2])
return 1
