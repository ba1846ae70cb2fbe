-- life.lua: the steps of a group's life: open, ready, leased, consumed; or discarded.
-- include: ready.lua
-- Close a group for good. It stays readable for `keep` ms under `kept`, and no longer counts.
local function close(gid, state, done, keep)
  local meta = redis.call('HMGET', meta_of(gid), 'bytes', 'n')
  for _, index in ipairs({'open', 'changed', 'ready', 'leased'}) do
    redis.call('ZREM', at(index), gid)
  end
  if done then redis.call('ZADD', at(done), now, gid) end
  redis.call('ZADD', at('kept'), now + keep, gid)
  redis.call('HSET', meta_of(gid), 'state', state, 'closed', now)
  redis.call('PEXPIRE', meta_of(gid), keep)
  redis.call('PEXPIRE', group_of(gid), keep)
  count('bytes', -tonumber(meta[1] or '0'))
  count(state, 1)
  count(state .. '_items', tonumber(meta[2] or '0'))
end

-- Close a group whose items no trainer gets; its id is reported with the next batch.
local function discard(gid, state)
  local id = redis.call('HGET', meta_of(gid), 'id') or cjson.encode(instance_of(gid))
  close(gid, state, 'discarded', set.grace_ms)
  redis.call('RPUSH', at('unreported'), id)
end

-- Something of ours or of the user's failed on this group: set it aside with the reason.
local function quarantine(gid, reason)
  close(gid, 'quarantined', nil, set.quarantine_ms)
  redis.call('HSET', at('quarantine'), gid, reason)
end

-- A batch ends: its groups were used.
local function consume(receipt)
  local gids = redis.call('LRANGE', at('batch:' .. receipt .. ':groups'), 0, -1)
  for _, gid in ipairs(gids) do close(gid, 'consumed', 'delivered', set.retain_ms) end
  redis.call('ZREM', at('leases'), receipt)
  redis.call('HSET', at('batch:' .. receipt), 'state', 'consumed')
  for _, part in ipairs({'', ':groups', ':discarded'}) do
    redis.call('PEXPIRE', at('batch:' .. receipt .. part), set.retain_ms)
  end
  return #gids
end
