-- catch_up.lua: the next steps of what the last publication, or change of the policy, has to do.
-- KEYS   root
-- ARGV   version(that was published; empty: whichever it is)
-- REPLY  {more(1: there are further steps), stale, returned, gone}, as publish.lua counts them
-- include: all_groups_in_steps.lua
return whole(function()
  if not policy or tonumber(VERSION) and tonumber(VERSION) ~= policy.version then return {0, 0, 0, 0} end
  do_chores()
  return {progress()}
end)
