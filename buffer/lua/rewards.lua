-- rewards.lua: how many rewards fell into each step of a tenth from -1 to 1, since the run began.
-- A step is named by its upper end, which belongs to it; what is below -1 is in the first.
local function weigh(reward)
  local step = math.ceil(reward * 10 - 1e-9) -- 0.7 * 10 is a little more than 7
  step = math.max(-10, math.min(11, step))
  add('rewards', step > 10 and '+Inf' or string.format('%.1f', step / 10 + 0), 1) -- no -0.0
end
