-- offer.lua: the ready groups in the order in which they are taken.
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

-- How many a take would get now, two rounds of one instance or not.
local function available()
  if not policy then return redis.call('ZCARD', at('ready')) end
  local found = 0
  local page = offered(0, math.max(0, policy.groups_per_version - policy.taken), 'WITHSCORES')
  for i = 2, #page, 2 do
    local place = math.floor(page[i])
    if not may_go(place) then break end
    if policy.order ~= 'batch' then tally(place, -1) end
    policy.taken = policy.taken + 1
    found = found + 1
  end
  return found
end
