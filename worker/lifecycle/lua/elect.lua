-- elect.lua: become, or stay, the one reaper of a registry.
-- KEYS   registry leases permits sessions
-- ARGV   reaper lease_us
-- REPLY  us since it was elected | -1 somebody else is
-- include: records.lua
local known = call('HMGET', REGISTRY, 'reaper', 'reaper_until', 'reaper_since')
local lives = (tonumber(known[2]) or 0) > now
if lives and known[1] ~= ARGV[1] then return -1 end
local since = lives and known[3] or number(now)
call('HSET', REGISTRY, 'reaper', ARGV[1], 'reaper_until', number(now + ARGV[2]), 'reaper_since', since)
return now - since
