-- without_breaker.lua: a queue without a breaker: nobody hears how its programs end.
local function hear() end
local function put_off() end
local function obey() end
