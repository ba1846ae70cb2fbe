-- due.lua: what time alone brings about: groups time out, leases end, what was kept goes.
-- include: give_back.lua
local function time_out(gid)
  local n = tonumber(redis.call('HGET', meta_of(gid), 'n') or '0')
  if redis.call('EXISTS', group_of(gid)) == 0 then
    count('vanished', 1)
    discard(gid, 'expired')
  elseif n / set.group_size >= set.min_timeout_group_size_ratio then
    make_ready(gid, 'timeout')
  else
    discard(gid, 'expired')
  end
end

local function do_due(limit)
  local late = '(' .. string.format('%d', now - set.group_timeout_ms)
  local done = 0
  for _, gid in ipairs(redis.call('ZRANGEBYSCORE', at('open'), '-inf', late, 'LIMIT', 0, limit)) do
    time_out(gid)
    done = done + 1
  end
  for _, receipt in ipairs(redis.call('ZRANGEBYSCORE', at('leases'), '-inf', now, 'LIMIT', 0, 8)) do
    if redis.call('HGET', at('batch:' .. receipt), 'handed') then
      consume(receipt)
    else
      give_back(receipt)
    end
    done = done + 1
  end
  for _, gid in ipairs(redis.call('ZRANGEBYSCORE', at('kept'), '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('ZREM', at('kept'), gid)
    redis.call('HDEL', at('quarantine'), gid)
  end
  return done
end

-- When time alone will next bring something about, in ms from now; -1 is never.
local function next_due()
  local soonest = -1
  local open = redis.call('ZRANGE', at('open'), 0, 0, 'WITHSCORES')
  if open[2] then soonest = math.max(0, open[2] + set.group_timeout_ms - now + 1) end
  local lease = redis.call('ZRANGE', at('leases'), 0, 0, 'WITHSCORES')
  if lease[2] and (soonest < 0 or lease[2] - now < soonest) then
    soonest = math.max(0, lease[2] - now)
  end
  return soonest
end
