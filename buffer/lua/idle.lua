-- idle.lua: a task with nothing in it goes away after a while; a write keeps it.
-- include: task.lua
-- include: fixed.lua

local function wake()
  if set.idle ~= 1 then return end
  redis.call('HDEL', at('config'), 'idle')
  persist()
end

local function doze()
  if set.idle == 1 then return end
  for _, index in ipairs({'open', 'ready', 'leased', 'slots', 'waiting', 'parked', 'again'}) do
    if redis.call('EXISTS', at(index)) == 1 then return end
  end
  save_counts()
  redis.call('HSET', at('config'), 'idle', 1)
  redis.call('HSET', at('state'), 'bytes', 0)
  for _, part in ipairs(FIXED) do redis.call('PEXPIRE', at(part), set.idle_ttl_ms) end
end
