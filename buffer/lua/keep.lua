-- keep.lua: what is noted of a group that took items, and of items that it did not take.
-- Late and surplus items are kept for inspection: the newest few, their first 2 kB.
local function set_aside(gid, code, uid, payload)
  local head = code .. ' ' .. gid .. ' ' .. uid .. ' ' .. string.sub(payload, 1, 2048)
  redis.call('LPUSH', at('aside'), head)
  redis.call('LTRIM', at('aside'), 0, 255)
end

-- Its size, its place among the open, its time to live.
local function keep(group, id_json)
  local gid = group.gid
  if group.mark ~= seen.mark then seen.groups = seen.groups + 1 end
  redis.call('HSET', meta_of(gid), 'state', group.state, 'id', id_json, 'n', group.n,
    'bytes', group.bytes, 'mark', seen.mark)
  room.bytes = room.bytes + group.added
  if group.new then room.groups = room.groups + 1 end
  if group.state ~= 'open' then return end
  redis.call('ZADD', at('open'), now, gid)
  if set.custom == 1 then
    redis.call('ZADD', at('changed'), now, gid)
    ring()
  elseif group.n >= set.finish_at then
    return make_ready(gid, 'count')
  end
  redis.call('PEXPIRE', group_of(gid), set.open_ttl_ms)
  redis.call('PEXPIRE', meta_of(gid), set.idle_ttl_ms)
end
