-- ungated.lua: a worker without a gate has no permits to give back.
-- include: clock.lua
local function free_permit() end
