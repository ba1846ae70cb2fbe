-- judge.lua: apply the verdict of a custom is_valid_group, if the group did not change meanwhile.
-- KEYS   root
-- ARGV   for each group: gid n verdict(open | valid | invalid | quarantined) reason
-- REPLY  how many verdicts held
-- include: slots.lua
return whole(function()
  local held = 0
  for gid, n, verdict, reason in each_group() do
    local meta = redis.call('HMGET', meta_of(gid), 'state', 'n')
    if meta[1] == 'open' and meta[2] == n then
      held = held + 1
      if verdict == 'valid' then make_ready(gid, 'judged') end
      if verdict == 'invalid' then discard(gid, 'invalid', reason) end
      if verdict == 'quarantined' then quarantine(gid, reason) end
      redis.call('ZREM', at('changed'), gid)
    elseif meta[1] ~= 'open' then
      redis.call('ZREM', at('changed'), gid)
    end
  end
  return held
end)
