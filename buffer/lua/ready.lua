-- ready.lua: an open group is finished; it keeps for as long as no trainer takes it.
-- include: task.lua
local function leave_open(gid)
  redis.call('ZREM', at('open'), gid)
  redis.call('ZREM', at('changed'), gid)
  redis.call('PERSIST', meta_of(gid))
  redis.call('PERSIST', group_of(gid))
end

local function enter_ready(gid, why, since)
  redis.call('ZADD', at('ready'), since, gid)
  redis.call('HSET', meta_of(gid), 'state', 'ready', 'why', why, 'finished', since)
  count('finished', 1)
  ring()
end

local function make_ready(gid, why, since)
  leave_open(gid)
  enter_ready(gid, why, since or now)
end
