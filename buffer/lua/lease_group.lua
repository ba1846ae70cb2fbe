-- lease_group.lua: how a group gets into a batch: leased with it, and told once.
-- include: group_life.lua
-- Its id, why it is finished and its state; under a policy its start, whether it counts, and with the
-- order `batch` its target. Of its id and why nothing is known if a script stopped.
local function known(gid)
  local meta = not policy and redis.call('HMGET', meta_of(gid), 'id', 'why', 'state')
    or policy.order == 'batch' and redis.call('HMGET', meta_of(gid), 'id', 'why', 'state', 'start', 'counted', 'target')
    or redis.call('HMGET', meta_of(gid), 'id', 'why', 'state', 'start', 'counted')
  meta.over = CLOSED[meta[3]] or meta[3] == 'leased'
  meta[1], meta[2] = meta[1] or cjson.encode(instance_of(gid)), meta[2] or 'count'
  if not policy then return meta end
  -- It vanished, with what was known of it; or it is of a line that was just left.
  meta.start = tonumber(meta[4] or policy.version)
  meta.told = string.format('%d', math.min(meta.start, policy.version))
  meta.place = tonumber(meta[6] or meta.told)
  return meta
end

local function tell(batch, gid, meta)
  batch.has[instance_of(gid)] = true
  local bytes = batch.room and bytes_of(gid)
  if bytes then batch.room = batch.room - bytes end
  for _, said in ipairs({gid, meta[1], meta[2], meta.told or '', bytes or ''}) do
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
    if meta[5] == '1' then tally(meta.start, -1) end
    count_taken(1)
    leave_ready(gid)
  else
    redis.call('HSET', meta_of(gid), 'state', 'leased', 'closed', now, 'receipt', batch.receipt)
  end
  redis.call('ZREM', at('ready'), gid)
  tell(batch, gid, meta)
end
