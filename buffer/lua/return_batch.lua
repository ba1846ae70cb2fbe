-- return_batch.lua: how a lease ends. A batch that comes back has its groups ready again in their old places, and
-- the discarded ids it reported are reported with another batch.
-- include: group_life.lua
-- include: slots.lua if full
-- Taken since the last publication, but it is not trained on, or is to be again: another may be taken.
local function untake(gid)
  if not policy then return end
  local under = redis.call('HGET', meta_of(gid), 'under')
  if redis.call('HDEL', meta_of(gid), 'under') == 1 and under == tostring(policy.epoch) then count_taken(-1) end
end

-- A group that is another batch's by now, or closed, is not this one's to give. Whether it was.
local function put_back(gid, receipt)
  local meta = redis.call('HMGET', meta_of(gid), 'finished', 'state', 'receipt', 'start', 'counted', 'slot')
  if meta[2] and meta[3] ~= receipt then return false end
  local was = meta[2] and not CLOSED[meta[2]] and redis.call('ZSCORE', at('leased'), gid)
  if was then
    untake(gid)
    if enter_ready(gid, {meta[4], meta[5], meta[6]}, {'returned', now, finished = meta[1] or now}) then end_too_old(gid) end
  end
  redis.call('ZREM', at('leased'), gid)
  return was
end

-- Answers as `consume` does, and how many groups came back.
local function give_back(receipt, most)
  local batch, back, told = at('batch:' .. receipt), 0, 0
  redis.call('HSET', batch, 'state', 'returning')
  local gids = redis.call('LRANGE', batch .. ':groups', 0, most)
  local more = table.remove(gids, most + 1)
  for _, gid in ipairs(gids) do
    if put_back(gid, receipt) then back = back + 1 end
  end
  redis.call('LTRIM', batch .. ':groups', #gids, -1)
  if back > 0 then ring() end
  count('returned', back)
  while not more and told < 1000 and redis.call('RPOPLPUSH', batch .. ':discarded', at('unreported')) do
    told = told + 1
  end
  if more or told == 1000 then
    redis.call('ZADD', at('leases'), 'XX', now, receipt)
    return #gids, true, back
  end
  redis.call('HSET', batch, 'state', 'returned')
  finish_batch(batch, receipt)
  return #gids, false, back
end

-- Its time is over; or the script that ended it has left some of it.
local function end_lease(receipt, most)
  local batch = at('batch:' .. receipt)
  local had = redis.call('HMGET', batch, 'state', 'handed')
  if had[1] == 'consumed' or had[1] == 'returned' then -- a script stopped before it forgot this
    finish_batch(batch, receipt)
    return 1
  end
  local consumed = had[1] == 'consuming' or had[1] == 'leased' and had[2]
  return (consumed and consume or give_back)(receipt, most)
end
