-- hire.lua: this server takes on a rollout, unless the identical one runs or is being prepared;
-- `again` is 1 where it is known that the one that runs is to be replaced.
-- KEYS   rollout
-- ARGV   owner lease_ms digest payload again
-- REPLY  {taken, state}: 1 when it is this server's to prepare; else 0, and what state it is in
local stamp = redis.call('TIME')
local now = stamp[1] * 1000 + math.floor(stamp[2] / 1000)
local had = redis.call('HMGET', KEYS[1], 'digest', 'state', 'until')
local lives = had[2] == 'preparing' or (had[2] == 'running' and ARGV[5] == '0')
if had[1] == ARGV[3] and lives and tonumber(had[3]) > now then return {0, had[2]} end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'digest', ARGV[3], 'payload', ARGV[4],
  'state', 'preparing', 'until', now + ARGV[2])
return {1, 'preparing'}
