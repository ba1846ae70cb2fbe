-- forget_group.lua: nothing is known any more of a delivered group that is not kept: its round is made again.
-- KEYS   root
-- ARGV   gid
-- REPLY  1; or 0 for one that is ready again meanwhile
-- include: group_life.lua
return whole(function()
  local state = redis.call('HGET', meta_of(GID), 'state')
  local closed = not state or CLOSED[state]
  if closed then
    let_go(GID)
    redis.call('UNLINK', meta_of(GID))
    redis.call('ZREM', at('kept'), GID)
  end
  redis.call('ZREM', at('delivered'), GID)
  return closed and 1 or 0
end)
