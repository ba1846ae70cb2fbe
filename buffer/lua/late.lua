-- late.lua: a group whose time is over, of whichever kind.
-- include: return_batch.lua

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
