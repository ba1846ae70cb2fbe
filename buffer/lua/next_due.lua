-- next_due.lua: when time alone will next bring something about, in ms from now; -1 is never.
-- include: whole.lua
local function next_due()
  local soonest = -1
  local open = redis.call('ZRANGE', at('open'), 0, 0, 'WITHSCORES')
  if open[2] then soonest = math.max(0, open[2] + set.group_timeout_ms - now + 1) end
  local lease = redis.call('ZRANGE', at('leases'), 0, 0, 'WITHSCORES')
  if lease[2] and (soonest < 0 or lease[2] - now < soonest) then
    soonest = math.max(0, lease[2] - now)
  end
  if not policy then return soonest end
  local slot = redis.call('ZRANGE', at('slots'), 0, 0, 'WITHSCORES')
  if slot[2] and (soonest < 0 or slot[2] - now < soonest) then
    soonest = math.max(0, slot[2] - now)
  end
  return soonest
end
