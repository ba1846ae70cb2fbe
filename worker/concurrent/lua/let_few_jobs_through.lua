-- let_few_jobs_through.lua: a queue that a breaker has paused lets a few jobs through, after a while. It needs
-- `kept`, whose first value says what is paused.
-- include: limiter:breaker.lua
local paused = suspended == 0 and kept[1]
local trial = paused and breakers().read(paused)
if paused then suspended = 2 end
local few = trial and trial.room() or suspended == 0 and math.huge or 0

local function let_through(many)
  if not trial or many == 0 then return end
  trial.let_through(many)
  call('HSET', WORK, 'paused', trial.text())
end
