-- timeouts.lua: what time alone brings about: groups time out, leases end, what was kept goes.
-- include: return_batch.lua
-- Somebody makes it, or it waits for the next slot.
local function is_for_slots(gid)
  return redis.call('HEXISTS', meta_of(gid), 'slot') == 1 or redis.call('ZSCORE', at('parked'), gid)
end

-- It finished when its time was over, not when somebody looked: that keeps the order.
local function time_out(gid, last)
  if policy and is_for_slots(gid) then -- the bound on its age is its time limit
    redis.call('PERSIST', group_of(gid))
    redis.call('PERSIST', meta_of(gid))
    return redis.call('ZADD', at('open'), now, gid)
  end
  local state, n = redis.call('HGET', meta_of(gid), 'state'), redis.call('HLEN', group_of(gid))
  if state and state ~= 'open' then -- a script stopped before it took this from here
    redis.call('ZREM', at('changed'), gid)
    redis.call('ZREM', at('open'), gid)
  elseif n == 0 then
    count('vanished', 1)
    discard(gid, 'expired')
  elseif n / set.group_size >= set.min_timeout_group_size_ratio then
    make_ready(gid, 'timeout', last + set.group_timeout_ms)
  else
    discard(gid, 'expired')
  end
end

-- Closed groups whose time is over. Redis has deleted them by then, or what is known of them expires; but a
-- script that stopped may have left some of it without a time of its own.
local function forget_kept(gids)
  if #gids == 0 then return end
  if redis.call('EXISTS', at('quarantine')) == 1 then
    for _, gid in ipairs(gids) do leave_quarantine(gid) end
  end
  local groups, metas = {}, {}
  for i, gid in ipairs(gids) do groups[i], metas[i] = group_of(gid), meta_of(gid) end
  local has_items = redis.call('EXISTS', unpack(groups)) > 0
  if has_items or redis.call('EXISTS', unpack(metas)) > 0 then
    for i, meta in ipairs(metas) do
      if (has_items or redis.call('PTTL', meta) == -1) and CLOSED[redis.call('HGET', meta, 'state')] then
        redis.call('UNLINK', groups[i])
        redis.call('PEXPIRE', meta, set.late_ms)
      end
    end
  end
  redis.call('ZREM', at('kept'), unpack(gids))
end

local function do_due(limit)
  local late = '(' .. string.format('%d', now - set.group_timeout_ms)
  local done = 0
  local open = redis.call('ZRANGEBYSCORE', at('open'), '-inf', late, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #open, 2 do
    time_out(open[i], open[i + 1])
    done = done + 1
  end
  local walked = 0
  for _, receipt in ipairs(redis.call('ZRANGEBYSCORE', at('leases'), '-inf', now, 'LIMIT', 0, 8)) do
    if walked >= 200 then break end
    walked = walked + end_lease(receipt, 200)
    done = done + 1
  end
  forget_kept(redis.call('ZRANGEBYSCORE', at('kept'), '-inf', now, 'LIMIT', 0, 100))
  if not policy then return done end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', at('slots'), '-inf', now, 'LIMIT', 0, limit)) do
    local granted = tonumber(redis.call('HGET', slot_of(id), 'granted') or now)
    end_slot(id, now - granted >= policy.longest_ms and 'overdue' or 'lapsed')
    done = done + 1
  end
  if policy.saved then
    local saved = string.format('(%d', policy.saved)
    for _, gid in ipairs(redis.call('ZRANGEBYSCORE', at('used'), '-inf', saved, 'LIMIT', 0, limit)) do
      let_go(gid)
      done = done + 1
    end
  end
  return done
end
