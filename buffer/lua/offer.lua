-- offer.lua: the ready groups in the order in which they are taken.
-- include: policy.lua
-- Each with its score: under a policy, its whole part is the group's start.
local function offered(skip, want)
  if not policy then return redis.call('ZRANGE', at('ready'), skip, skip + want - 1, 'WITHSCORES') end
  local range = policy.order == 'fresh' and 'ZREVRANGE' or 'ZRANGE'
  return redis.call(range, at('aged'), skip, skip + want - 1, 'WITHSCORES')
end

-- How many a take would get now, two rounds of one instance or not.
local function available()
  if not policy then return redis.call('ZCARD', at('ready')) end
  local found = 0
  local page = offered(0, math.max(0, policy.groups_per_version - policy.taken))
  for i = 2, #page, 2 do
    local start = math.floor(page[i])
    if may_take(start) < 1 then break end
    tally(start, -1)
    policy.taken = policy.taken + 1
    found = found + 1
  end
  return found
end
