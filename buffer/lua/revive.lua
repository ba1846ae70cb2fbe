-- revive.lua: a quarantined or discarded group that is still kept becomes ready again, as `requeue` of a catalog
-- asks. One that got too old counts as begun under the last version. Repeating it changes nothing until that is used.
-- KEYS   root
-- ARGV   gid
-- REPLY  1, now or by a call before; or 0 when nothing of it is kept
-- include: return_batch.lua
-- include: idle.lua
local meta = redis.call('HMGET', meta_of(GID), 'state', 'bytes', 'why', 'version', 'requeued', 'start')
if not meta[1] or redis.call('EXISTS', group_of(GID)) == 0 then return 0 end
if not CLOSED[meta[1]] and not (meta[5] and meta[1] ~= 'open') then return 0 end

-- It is ready before it is nowhere else.
local function bring_back()
  wake()
  if policy and (meta[1] == 'stale' or too_old(tonumber(meta[6] or policy.version))) then
    redis.call('HSET', meta_of(GID), 'start', policy.version)
  end
  untake(GID)
  redis.call('PERSIST', group_of(GID))
  redis.call('PERSIST', meta_of(GID))
  finish(GID, meta[1] == 'quarantined' and (meta[3] or 'count') or 'judged', now, true, nil, {'requeued', now,
    count = function()
      count('bytes', tonumber(meta[2] or '0'))
      count('requeued', 1)
    end})
  if policy and meta[1] == 'consumed' and meta[4] then add('trained', meta[4], -1) end
end

return whole(function()
  if meta[1] == 'leased' then return 1 end
  let_go(GID) -- before it is ready, as what gives it a time to live
  if CLOSED[meta[1]] then bring_back() end
  for _, index in ipairs({'kept', 'delivered', 'discarded', 'leased'}) do redis.call('ZREM', at(index), GID) end
  leave_quarantine(GID)
  redis.call('HDEL', meta_of(GID), 'closed', 'reason')
  return 1
end)
