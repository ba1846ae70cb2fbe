-- requeue.lua: a quarantined or discarded group that is still kept becomes ready again. One that got
-- too old counts as begun under the last version.
-- KEYS   root
-- ARGV   gid
-- REPLY  1, or 0 when nothing of it is kept
-- include: give_back.lua
-- include: idle.lua
local meta = redis.call('HMGET', meta_of(GID), 'state', 'bytes', 'why', 'version')
local kept = {quarantined = true, invalid = true, expired = true, stale = true, consumed = true}
if not kept[meta[1]] or redis.call('EXISTS', group_of(GID)) == 0 then return 0 end
return whole(function()
  wake()
  if meta[1] == 'stale' and policy then redis.call('HSET', meta_of(GID), 'start', policy.version) end
  untake(GID)
  redis.call('PERSIST', group_of(GID))
  redis.call('PERSIST', meta_of(GID))
  finish(GID, meta[1] == 'quarantined' and (meta[3] or 'count') or 'judged', now, true, nil, {
    count = function()
      count('bytes', tonumber(meta[2] or '0'))
      count('requeued', 1)
    end})
  if policy and meta[1] == 'consumed' and meta[4] then redis.call('HINCRBY', at('trained'), meta[4], -1) end
  let_go(GID)
  for _, index in ipairs({'kept', 'delivered', 'discarded'}) do redis.call('ZREM', at(index), GID) end
  leave_quarantine(GID)
  redis.call('HDEL', meta_of(GID), 'closed', 'reason')
  return 1
end)
