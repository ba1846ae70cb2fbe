-- elect.lua: become, or stay, the one reaper of a registry's sandboxes of one scope.
-- KEYS   registry leases permits sessions office
-- ARGV   reaper lease_us
-- REPLY  us since it was elected | -1 somebody else is
-- include: records.lua
local office, reaper = KEYS[5], ARGV[1]
local known = call('HMGET', office, 'reaper', 'since')
if known[1] and known[1] ~= reaper then return -1 end
local since = known[2] or number(now)
call('HSET', office, 'reaper', reaper, 'since', since)
call('PEXPIRE', office, math.ceil(ARGV[2] / 1000))
return now - since
