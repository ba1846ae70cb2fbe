-- idle.lua: a task with nothing in it goes away after a while; a write keeps it.
-- include: policy.lua
-- include: fixed.lua

local function wake()
  if set.idle ~= 1 then return end
  persist()
  redis.call('HDEL', at('config'), 'idle')
end

local function doze()
  if set.idle == 1 then return end
  for _, index in ipairs({'open', 'ready', 'leased', 'slots', 'parked', 'again'}) do
    if redis.call('EXISTS', at(index)) == 1 then return end
  end
  if each_waiter(0)() then return end -- it takes those that died out of the line
  save_sums()
  save_reports()
  redis.call('HSET', at('state'), 'bytes', 0)
  for _, part in ipairs(FIXED) do redis.call('PEXPIRE', at(part), set.idle_ttl_ms) end
  redis.call('HSET', at('config'), 'idle', 1)
end
