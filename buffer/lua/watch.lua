-- watch.lua: renew a rollout of this server, or take over one whose server is gone. One of this server that does
-- not run here is given to it again: the reply of the call that gave it was lost.
-- KEYS   rollout
-- ARGV   owner lease_ms preparing(the digest that this server prepares, or empty) able(1|0)
--        idle(1: it is able, and neither runs nor prepares one)
-- REPLY  {digest, payload}: digest is empty when it is not this server's, payload when it runs here
--
-- A server without the task's generator only stands in: it keeps the record, until one that is
-- able to run it comes.
local stamp = redis.call('TIME')
local now = stamp[1] * 1000 + math.floor(stamp[2] / 1000)
local had = redis.call('HMGET', ROLLOUT,
  'owner', 'state', 'until', 'digest', 'payload', 'stands_in')
local mine, able = had[1] == OWNER, ABLE == '1'
-- A full Redis refuses a script's first write if it needs memory, and none after one that does not.
-- So this begins with one that never needs any: a renewal must not fail then.
redis.call('HDEL', ROLLOUT, '')
if mine and had[2] == 'preparing' and had[4] == PREPARING then
  redis.call('HSET', ROLLOUT, 'until', now + LEASE_MS)
end
if had[2] ~= 'running' then return {'', ''} end
if mine and IDLE ~= '1' then
  redis.call('HSET', ROLLOUT, 'until', now + LEASE_MS)
  return {had[4], ''}
end
if not mine and tonumber(had[3]) > now and not (able and had[6] == '1') then return {'', ''} end
redis.call('HSET', ROLLOUT, 'owner', OWNER, 'until', now + LEASE_MS,
  'stands_in', able and '0' or '1')
return {had[4], had[5]}
