-- taking.lua: how a group gets into a batch: leased with it, and told once.
-- include: slots.lua
-- Its id and why it is finished; under a policy its start, and with the order `batch` its target.
local function known(gid)
  if not policy then return redis.call('HMGET', meta_of(gid), 'id', 'why') end
  local meta = policy.order == 'batch' and redis.call('HMGET', meta_of(gid), 'id', 'why', 'start', 'target')
    or redis.call('HMGET', meta_of(gid), 'id', 'why', 'start')
  -- It vanished, with what was known of it; or it is of a line that was just left.
  meta.start = tonumber(meta[3] or policy.version)
  meta[3] = string.format('%d', math.min(meta.start, policy.version))
  return meta
end

local function bytes_of(gid) return tonumber(redis.call('HGET', meta_of(gid), 'bytes') or '0') end

local function tell(batch, gid, meta)
  batch.has[instance_of(gid)] = true
  local bytes = batch.room and bytes_of(gid)
  if bytes then batch.room = batch.room - bytes end
  for _, said in ipairs({gid, meta[1], meta[2], meta[3] or '', bytes or ''}) do
    batch.reply[#batch.reply + 1] = said
  end
  batch.want = batch.want - 1
end

-- The batch has it, with its lease, before it is ready no more: what an error leaves comes back.
local function take(batch, gid, ends, meta)
  if redis.call('EXISTS', group_of(gid)) == 0 then
    count('vanished', 1)
    return discard(gid, 'expired')
  end
  batch.lease()
  redis.call('RPUSH', batch.key .. ':groups', gid)
  redis.call('ZADD', at('leased'), ends, gid)
  if policy then
    redis.call('HSET', meta_of(gid), 'state', 'leased', 'closed', now, 'receipt', batch.receipt,
      'under', policy.epoch, 'version', policy.version, 'line', policy.line, 'counted', '0')
    leave_ready(gid)
    tally(meta.start, -1)
    count_taken(1)
  else
    redis.call('HSET', meta_of(gid), 'state', 'leased', 'closed', now, 'receipt', batch.receipt)
  end
  redis.call('ZREM', at('ready'), gid)
  tell(batch, gid, meta)
end
