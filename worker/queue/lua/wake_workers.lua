-- wake_workers.lua: workers that wait for the end of a pause look again, by RQ's channel. It needs `call`.
local function wake_workers(workers)
  local names = call('ZRANGE', workers, 0, -1)
  for _, name in ipairs(names) do call('PUBLISH', 'rq:pubsub:' .. name, '{"command": "look"}') end
  return #names
end
