-- hire.lua: this server takes on a rollout, unless the identical one runs or is being prepared;
-- `again` is 1 where it is known that the one that runs is to be replaced.
-- KEYS   rollout
-- ARGV   owner lease_ms digest payload again
-- REPLY  {taken, state}: 1 when it is this server's to prepare; else 0, and what state it is in
local stamp = redis.call('TIME')
local now = stamp[1] * 1000 + math.floor(stamp[2] / 1000)
local had = redis.call('HMGET', ROLLOUT, 'digest', 'state', 'until')
local lives = had[2] == 'preparing' or (had[2] == 'running' and AGAIN == '0')
if had[1] == DIGEST and lives and tonumber(had[3]) > now then return {0, had[2]} end
redis.call('PERSIST', ROLLOUT)
redis.call('HSET', ROLLOUT, 'owner', OWNER, 'digest', DIGEST, 'payload', PAYLOAD,
  'state', 'preparing', 'until', now + LEASE_MS)
redis.call('HDEL', ROLLOUT, 'stands_in')
return {1, 'preparing'}
