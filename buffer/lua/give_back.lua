-- give_back.lua: a batch comes back: its groups are ready again in their old places, and
-- the discarded ids it reported are reported with another batch.
-- include: slots.lua
-- Taken since the last publication, but it is not trained on, or is to be again: another may be taken.
local function untake(gid)
  if not policy then return end
  if redis.call('HGET', meta_of(gid), 'under') == tostring(policy.epoch) then count_taken(-1) end
  redis.call('HDEL', meta_of(gid), 'under')
end

local function put_back(gid)
  if not redis.call('ZSCORE', at('leased'), gid) then return end
  local finished = redis.call('HGET', meta_of(gid), 'finished') or now
  redis.call('ZADD', at('ready'), finished, gid)
  redis.call('HSET', meta_of(gid), 'state', 'ready', 'returned', now)
  redis.call('ZREM', at('leased'), gid)
  if policy then
    untake(gid)
    stand_by_age(gid)
  end
end

local function give_back(receipt)
  local batch = at('batch:' .. receipt)
  local gids = redis.call('LRANGE', batch .. ':groups', 0, -1)
  for _, gid in ipairs(gids) do put_back(gid) end
  for _, id in ipairs(redis.call('LRANGE', batch .. ':discarded', 0, -1)) do
    redis.call('RPUSH', at('unreported'), id)
  end
  redis.call('ZREM', at('leases'), receipt)
  redis.call('HSET', batch, 'state', 'returned')
  redis.call('PEXPIRE', batch, set.retain_ms)
  redis.call('DEL', batch .. ':groups', batch .. ':discarded')
  count('returned', #gids)
  if #gids > 0 then ring() end
end
