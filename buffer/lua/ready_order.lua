-- ready_order.lua: the ready groups in the order in which they are taken.
-- include: whole.lua
-- Under a policy they have scores, whose whole part is the group's start, or its target.
local function offered(skip, want, ...)
  if not policy then return redis.call('ZRANGE', at('ready'), skip, skip + want - 1) end
  local range = policy.order == 'fresh' and 'ZREVRANGE' or 'ZRANGE'
  local index = policy.order == 'batch' and 'targeted' or 'aged'
  return redis.call(range, at(index), skip, skip + want - 1, ...)
end
