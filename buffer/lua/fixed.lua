-- fixed.lua: the keys of a task that are there once, whatever its groups; idle, they all have a TTL.
local function fixed() return {'config', 'state', 'seen', 'rewards', 'rounds', 'delivered', 'discarded', 'kept',
  'unreported', 'quarantine', 'quarantined', 'aside', 'bell', 'raw', 'leases', 'changed',
  'policy', 'versions', 'starts', 'aged', 'parked', 'again', 'used', 'undone', 'trained', 'aiming', 'dropped', 'ages',
  'targets', 'targeted'} end

local function persist()
  for _, part in ipairs(fixed()) do redis.call('PERSIST', ROOT .. ':' .. part) end
end
