-- give_back.lua: a batch comes back: its groups are ready again in their old places, and
-- the discarded ids it reported are reported with another batch.
-- include: slots.lua
-- Taken since the last publication, but it is not trained on, or is to be again: another may be taken.
local function untake(gid)
  if not policy then return end
  local under = redis.call('HGET', meta_of(gid), 'under')
  if redis.call('HDEL', meta_of(gid), 'under') == 1 and under == tostring(policy.epoch) then count_taken(-1) end
end

-- A group that is another batch's by now, or closed, is not this one's to give.
local function put_back(gid, receipt)
  local meta = redis.call('HMGET', meta_of(gid), 'finished', 'state', 'receipt', 'start', 'counted', 'slot')
  if meta[2] and meta[3] ~= receipt then return end
  if meta[2] and not CLOSED[meta[2]] and redis.call('ZSCORE', at('leased'), gid) then
    untake(gid)
    if enter_ready(gid, {meta[4], meta[5], meta[6]}, {'returned', now, finished = meta[1] or now}) then ripen(gid) end
  end
  redis.call('ZREM', at('leased'), gid)
end

local function give_back(receipt)
  local batch = at('batch:' .. receipt)
  if redis.call('HGET', batch, 'state') == 'consumed' then return redis.call('ZREM', at('leases'), receipt) end
  local gids = redis.call('LRANGE', batch .. ':groups', 0, -1)
  for _, gid in ipairs(gids) do put_back(gid, receipt) end
  while redis.call('RPOPLPUSH', batch .. ':discarded', at('unreported')) do end
  redis.call('HSET', batch, 'state', 'returned')
  redis.call('PEXPIRE', batch, set.retain_ms)
  redis.call('DEL', batch .. ':groups')
  redis.call('ZREM', at('leases'), receipt)
  count('returned', #gids)
  if #gids > 0 then ring() end
end
