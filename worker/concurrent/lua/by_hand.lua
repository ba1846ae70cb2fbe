-- by_hand.lua: a queue is paused by hand alone, for a worker without a breaker. It needs `kept`, whose first
-- value says so.
if suspended == 0 and kept[1] == '1' then suspended = 2 end
local few = suspended == 0 and math.huge or 0
