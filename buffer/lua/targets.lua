-- targets.lua: each group gets its target once more, as versions or settings are others now.
-- include: slots.lua
local function all_gids()
  local gids, known = {}, {}
  local function add(gid)
    if gid and gid ~= '' and not known[gid] then gids[#gids + 1], known[gid] = gid, true end
  end
  for _, index in ipairs({'open', 'ready', 'parked', 'again'}) do
    for _, gid in ipairs(redis.call('ZRANGE', at(index), 0, -1)) do add(gid) end
  end
  for _, id in ipairs(redis.call('ZRANGE', at('slots'), 0, -1)) do add(redis.call('HGET', slot_of(id), 'gid')) end
  return gids
end

-- They keep their order; groups without a target go by their start.
local function retarget()
  redis.call('UNLINK', at('targets'), at('targeted'))
  if policy.order ~= 'batch' then return end
  if policy.taken > 0 then redis.call('HSET', at('targets'), policy.version, policy.taken) end
  local gids, target_of = all_gids(), {}
  for _, gid in ipairs(gids) do
    local meta = redis.call('HMGET', meta_of(gid), 'target', 'start')
    target_of[gid] = tonumber(meta[1] or meta[2] or policy.version)
    redis.call('HDEL', meta_of(gid), 'target')
  end
  table.sort(gids, function(one, other)
    return target_of[one] < target_of[other] or target_of[one] == target_of[other] and one < other
  end)
  for _, gid in ipairs(gids) do
    aim(gid)
    if redis.call('ZSCORE', at('ready'), gid) then
      local meta = redis.call('HMGET', meta_of(gid), 'start', 'finished')
      stand_ready(gid, tonumber(meta[1] or policy.version), meta[2])
    end
  end
end
