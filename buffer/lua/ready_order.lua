-- ready_order.lua: the ready groups in the order in which they are taken.
-- include: policy.lua
-- Under a policy they have scores, whose whole part is the group's start, or its target.
local function offered(skip, want, ...)
  if not policy then return redis.call('ZRANGE', at('ready'), skip, skip + want - 1) end
  local range = policy.order == 'fresh' and 'ZREVRANGE' or 'ZRANGE'
  local index = policy.order == 'batch' and 'targeted' or 'aged'
  return redis.call(range, at(index), skip, skip + want - 1, ...)
end

local function may_go(place)
  if policy.order == 'batch' and place > policy.version then return false end
  return may_take(place) > 0
end

-- How many a take would get now, two rounds of one instance or not. Of each start it gets as many as
-- the older ones leave room for (`may_take`), and each of them takes a place of all that follow.
local function available()
  if not policy then return redis.call('ZCARD', at('ready')) end
  local left = math.max(0, policy.groups_per_version - policy.taken)
  if policy.order == 'batch' then
    return math.min(left, redis.call('ZCOUNT', at('targeted'), '-inf', string.format('(%d', policy.version + 1)))
  end
  load_outstanding()
  local starts, found, taken = {}, 0, policy.taken
  for start, n in pairs(outstanding) do
    if n > 0 and not too_old(start) then starts[#starts + 1] = start end
  end
  table.sort(starts)
  for _, start in ipairs(starts) do
    local ready = redis.call('ZCOUNT', at('aged'), start, string.format('(%d', start + 1))
    local some = math.max(0, math.min(ready, may_take(start)))
    if ready > 0 then found, policy.taken = found + some, policy.taken + some end
    outstanding[start] = outstanding[start] - some
    if some < ready then break end
  end
  policy.taken, outstanding = taken, nil -- as they were
  return found
end
