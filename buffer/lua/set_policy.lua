-- set_policy.lua: the settings of a task's policy are in force from now on.
-- KEYS   root
-- ARGV   for each: name value
-- REPLY  1
-- include: policy.lua
for name, value in each() do redis.call('HSET', at('policy'), name, value) end
if policy then
  for name, value in each() do policy[name] = tonumber(value) or value end
  touched.taken, ring_late = policy.taken, true -- there may be room for others now
end
save_policy()
return 1
