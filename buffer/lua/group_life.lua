-- group_life.lua: the steps of a group's life: open, ready, leased, consumed; or discarded.
-- include: ready.lua
local function bytes_of(gid) return tonumber(redis.call('HGET', meta_of(gid), 'bytes') or '0') end

local function report(gid, id) reports[#reports + 1] = id or cjson.encode(instance_of(gid)) end

local CLOSED = {consumed = true, quarantined = true, invalid = true, expired = true, stale = true}

-- Close a group for good. It stays readable for `keep` ms under `kept`, and no longer counts. What is
-- known of it outlives the late window: an item that comes then is late, or the next round's. Closed a
-- second time, after a script that stopped, it counts no second time. Answers whether it was the batch's of
-- this receipt to close.
local function close(gid, state, done, keep, receipt, under)
  local meta = policy and redis.call('HMGET', meta_of(gid), 'bytes', 'n', 'state', 'id', 'began', 'finished',
    'receipt', 'listed', 'start', 'counted', 'slot')
    or redis.call('HMGET', meta_of(gid), 'bytes', 'n', 'state', 'id', 'began', 'finished', 'receipt', 'listed')
  local is_its = meta[7] == receipt and (meta[3] == 'leased' or meta[3] == 'consumed')
  if receipt and not is_its then return false end -- it is another batch's by now, dropped or ready again
  if done then redis.call('ZADD', at(done), now, gid) end
  redis.call('ZADD', at('kept'), now + keep, gid)
  if state == 'quarantined' then
    redis.call('HSET', meta_of(gid), 'state', state, 'closed', now, 'counted', 0, 'listed', 1)
    if meta[8] ~= '1' then count('quarantine_bytes', tonumber(meta[1] or '0')) end
  else
    redis.call('HSET', meta_of(gid), 'state', state, 'closed', now, 'counted', 0)
  end
  if policy and meta[10] == '1' then tally(tonumber(meta[9]), -1) end
  local first = not CLOSED[meta[3]]
  if first then
    count('bytes', -tonumber(meta[1] or '0'))
    count(state, 1)
    count(state .. '_items', tonumber(meta[2] or '0'))
    if policy and meta[5] then
      local made = state == 'consumed' and 'delivered' or 'dropped'
      count(made .. '_ms', math.max(0, tonumber(meta[6] or now) - tonumber(meta[5])))
      count(made .. '_timed', 1)
    end
    if under then add('trained', under, 1) end
    if state ~= 'consumed' and state ~= 'quarantined' then report(gid, meta[4]) end
  end
  if state == 'consumed' then -- it left all others when it was taken
    redis.call('ZREM', at('leased'), gid)
    if policy then redis.call('UNLINK', partial_of(gid)) end
  else
    for _, index in ipairs({'open', 'changed', 'ready', 'leased'}) do
      redis.call('ZREM', at(index), gid)
    end
    if policy then
      leave_outstanding(gid, meta[11])
      leave_queues(gid)
      lose_aim(gid)
    end
  end
  redis.call('PEXPIRE', meta_of(gid), math.max(keep, set.late_ms))
  redis.call('PEXPIRE', group_of(gid), keep)
  return is_its
end

-- Close a group whose items no trainer gets; its id is reported with the next batch.
local function discard(gid, state, reason)
  close(gid, state, 'discarded', set.grace_ms)
  if reason and reason ~= '' then redis.call('HSET', meta_of(gid), 'reason', reason) end
end

-- It is in quarantine no more.
local function leave_quarantine(gid)
  if redis.call('HEXISTS', at('quarantine'), gid) == 0 then return end
  local bytes = bytes_of(gid)
  redis.call('LREM', at('quarantined'), 1, gid)
  if redis.call('HDEL', meta_of(gid), 'listed') == 1 then count('quarantine_bytes', -bytes) end
  redis.call('HDEL', at('quarantine'), gid)
  if redis.call('EXISTS', at('quarantine')) == 0 then
    redis.call('HDEL', at('state'), 'quarantine_bytes') -- of what expired unseen, too
    sums.state.quarantine_bytes = nil
  end
end

-- A function of the user's, or Penstock, failed on this group: set it aside with the reason. All that are
-- there have a share of what the task may hold: for more, the oldest go, and are reported.
local QUARANTINE_SHARE = 0.25

local function quarantine(gid, reason)
  if redis.call('HEXISTS', at('quarantine'), gid) == 0 then redis.call('RPUSH', at('quarantined'), gid) end
  redis.call('HSET', at('quarantine'), gid, reason)
  close(gid, 'quarantined', nil, set.quarantine_ms)
  for _ = 1, 100 do
    local held, oldest = figure('quarantine_bytes'), redis.call('LINDEX', at('quarantined'), 0)
    if held <= set.max_bytes * QUARANTINE_SHARE or oldest == gid or not oldest then return end
    local meta = redis.call('HMGET', meta_of(oldest), 'id', 'state')
    local is_there = not meta[2] or meta[2] == 'quarantined'
    if is_there then
      redis.call('ZADD', at('discarded'), now, oldest)
      redis.call('UNLINK', group_of(oldest))
      redis.call('PEXPIRE', meta_of(oldest), math.max(set.grace_ms, set.late_ms))
    end
    leave_quarantine(oldest)
    redis.call('LREM', at('quarantined'), 1, oldest)
    if is_there then
      report(oldest, meta[1])
      redis.call('ZREM', at('kept'), oldest)
      count('quarantine_dropped', 1)
    end
  end
end

-- The groups of a batch end in steps: it may have thousands.
local BATCH_STEP = 500
-- include: unsaved.lua if full

-- Of closed groups `done_max` are remembered.
local function trim(most)
  for _, index in ipairs({'delivered', 'discarded', 'dropped'}) do
    local over = redis.call('ZCARD', at(index)) - set.done_max
    if over > 0 then redis.call('ZREMRANGEBYRANK', at(index), 0, math.min(over, most) - 1) end
  end
end

local function finish_batch(batch, receipt)
  for _, part in ipairs({'', ':groups', ':discarded'}) do
    redis.call('PEXPIRE', batch .. part, set.retain_ms)
  end
  redis.call('ZREM', at('leases'), receipt)
end

-- A batch ends: its groups were used. That is decided before the first of them closes, and each script that
-- finds the lease over goes on with it. Answers how many it closed, at most `most`, and whether there are more.
local function consume(receipt, most)
  local batch = at('batch:' .. receipt)
  local had = redis.call('HMGET', batch, 'version', 'used')
  local under, used = policy and had[1], tonumber(had[2] or '0')
  local unsaved = under and policy.saved and tonumber(under) >= policy.saved
  redis.call('HSET', batch, 'state', 'consuming')
  local gids = redis.call('LRANGE', batch .. ':groups', used, used + most)
  local more, keep, closed = table.remove(gids, most + 1), unsaved and set.idle_ttl_ms or set.retain_ms, {}
  for _, gid in ipairs(gids) do
    if close(gid, 'consumed', 'delivered', keep, receipt, under) then closed[#closed + 1] = gid end
  end
  if unsaved then hold(closed, under) end
  trim(2 * #gids)
  if more then
    redis.call('HSET', batch, 'used', used + #gids)
    redis.call('ZADD', at('leases'), 'XX', now, receipt)
  else
    redis.call('HSET', batch, 'state', 'consumed')
    finish_batch(batch, receipt)
  end
  return #gids, more
end
