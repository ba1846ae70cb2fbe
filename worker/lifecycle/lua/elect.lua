-- elect.lua: become, or stay, the one reaper of a registry.
-- KEYS   registry leases permits sessions
-- ARGV   reaper lease_us fleet
-- REPLY  {1 elected | 0 somebody else is, us since it was elected, us since the registry was made,
--         {field, value, …} of the registry}
-- include: records.lua
call('HSETNX', REGISTRY, 'made', number(now))
call('HSETNX', REGISTRY, 'fleet', ARGV[3])
local known = call('HMGET', REGISTRY, 'reaper', 'reaper_until', 'reaper_since')
local age = now - call('HGET', REGISTRY, 'made')
local lives = (tonumber(known[2]) or 0) > now
if lives and known[1] ~= ARGV[1] then return { 0, 0, age, call('HGETALL', REGISTRY) } end
local since = lives and known[3] or number(now)
call('HSET', REGISTRY, 'reaper', ARGV[1], 'reaper_until', number(now + ARGV[2]), 'reaper_since', since)
return { 1, now - since, age, call('HGETALL', REGISTRY) }
