-- breaker_on_queue.lua: the breaker of a queue without a gate. Its state is in the queue's own hash.
-- include: limiter:breaker.lua
-- include: worker.queue:wake_workers.lua
local paused = call('HGET', WORK, 'paused')
local broken = paused and breakers().read(paused)

local function standing() return broken end
local function is_out() return true end
local function is_paused_by_hand() return paused and not broken end

-- It is written before the text: those who see that text read why as well.
local function trip(why)
  call('HSET', WORK, 'paused_why', why)
  broken = breakers().open()
end

local function obey()
  if not broken then return end
  if broken.closed then
    call('HDEL', WORK, 'paused', 'paused_why')
    wake_workers(WORK .. ':workers')
  elseif broken.changed then
    call('HSET', WORK, 'paused', broken.text())
  end
end
