-- timeouts.lua: what time alone brings about: groups time out, leases end, what was kept goes.
-- include: whole.lua
-- include: late.lua if full
--
-- Mostly nothing is due. So a plain script makes the functions for that when something is.

local function do_due(limit)
  local function until_now(index, most)
    return redis.call('ZRANGEBYSCORE', at(index), '-inf', now, 'LIMIT', 0, most)
  end
  local late = '(' .. string.format('%d', now - set.group_timeout_ms)
  local open = redis.call('ZRANGEBYSCORE', at('open'), '-inf', late, 'WITHSCORES', 'LIMIT', 0, limit)
  local leases = until_now('leases', 8)
  if not (policy or open[1] or leases[1] or until_now('kept', 1)[1]) then return 0 end
-- include: late.lua
  local done, walked = 0, 0
  for i = 1, #open, 2 do
    time_out(open[i], open[i + 1])
    done = done + 1
  end
  for _, receipt in ipairs(leases) do
    if walked >= 200 then break end
    walked = walked + end_lease(receipt, 200)
    done = done + 1
  end
  forget_kept(until_now('kept', 100))
  if not policy then return done end
  for _, id in ipairs(until_now('slots', limit)) do
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
