-- set_policy.lua: the settings of a task's policy are in force from now on, for what is there too.
-- KEYS   root
-- ARGV   for each: name value
-- REPLY  how many groups are past the bound by it
-- include: targets.lua
local stale = 0
for name, value in each() do redis.call('HSET', at('policy'), name, value) end
if policy then
  for name, value in each() do policy[name] = tonumber(value) or value end
  touched.taken, ring_late = true, true -- there may be room for others now
  stale = ripen_all()
  retarget()
end
save_policy()
return stale
