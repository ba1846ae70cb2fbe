-- idle.lua: a task that was to go away, since it had nothing in it (`sweep.lua`), stays.
-- include: whole.lua
-- include: fixed.lua

local function wake()
  if set.idle ~= 1 then return end
  persist()
  redis.call('HDEL', at('config'), 'idle')
end
