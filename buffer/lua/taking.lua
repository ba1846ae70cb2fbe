-- taking.lua: how a group gets into a batch: leased with it, and told once.
-- include: slots.lua
local function tell(batch, gid)
  batch.has[instance_of(gid)] = true
  local meta = redis.call('HMGET', meta_of(gid), 'id', 'why', 'start')
  for _, said in ipairs({gid, meta[1], meta[2], meta[3] or ''}) do batch.reply[#batch.reply + 1] = said end
  batch.want = batch.want - 1
end

local function take(batch, gid, ends, start)
  redis.call('ZREM', at('ready'), gid)
  if redis.call('EXISTS', group_of(gid)) == 0 then
    count('vanished', 1)
    return discard(gid, 'expired')
  end
  if policy then
    redis.call('ZREM', at('aged'), gid)
    tally(start, -1)
    count_taken(1)
  end
  redis.call('ZADD', at('leased'), ends, gid)
  redis.call('HSET', meta_of(gid), 'state', 'leased', 'closed', now, 'receipt', batch.receipt,
    'under', policy and policy.epoch or '', 'counted', 0)
  redis.call('RPUSH', batch.key .. ':groups', gid)
  tell(batch, gid)
end
