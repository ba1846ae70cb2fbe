-- unsaved.lua: groups that were trained on since the last checkpoint: they are kept until there is another.
-- include: group_life.lua

-- A consumed group that no later line of versions can want again: it goes when `retain` is over. One that was
-- requeued meanwhile stays, and is no longer among these.
local function let_go(gid)
  if not redis.call('ZSCORE', at('used'), gid) then return end
  local bytes = bytes_of(gid)
  if redis.call('HGET', meta_of(gid), 'state') == 'consumed' then
    redis.call('ZADD', at('kept'), now + set.retain_ms, gid)
    redis.call('PEXPIRE', meta_of(gid), math.max(set.retain_ms, set.late_ms))
    redis.call('PEXPIRE', group_of(gid), set.retain_ms)
  end
  redis.call('ZREM', at('used'), gid)
  count('used_bytes', -bytes)
end

-- Groups that no checkpoint holds are kept for the trainer that comes back, as far as there is room.
local function hold(gids, under)
  for _, gid in ipairs(gids) do
    local bytes = bytes_of(gid)
    if redis.call('ZADD', at('used'), under, gid) == 1 then count('used_bytes', bytes) end
  end
  local over = figure('bytes', 'used_bytes') - set.max_bytes
  for _ = 1, over > 0 and BATCH_STEP or 0 do
    local oldest = redis.call('ZRANGE', at('used'), 0, 0)[1]
    if not oldest then return end
    over = over - bytes_of(oldest)
    let_go(oldest)
    count('let_go_unsaved', 1)
    if over <= 0 then return end
  end
end
