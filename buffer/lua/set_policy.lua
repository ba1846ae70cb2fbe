-- set_policy.lua: the settings of a task's policy are in force from now on, for what is there too.
-- KEYS   root
-- ARGV   for each: name value
-- REPLY  1 if groups are to be looked at for it: catch_up.lua does that
-- include: all_groups_in_steps.lua
return whole(function()
  for name, value in each() do redis.call('HSET', at('policy'), name, value) end
  if not policy then return 0 end
  for name, value in each() do policy[name] = tonumber(value) or value end
  -- Steps of a publication that are left come to these by themselves.
  if settled() then begin_chores('aim_open') end
  touched, ring_late = true, true -- there may be room for others now
  do_chores()
  return policy.todo and 1 or 0
end)
