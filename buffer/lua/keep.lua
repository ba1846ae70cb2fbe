-- keep.lua: what is noted of a group that took items, and of items that it did not take.
-- Late and surplus items are kept for inspection: the newest few, their first 2 kB.
local function set_aside(gid, code, uid, payload)
  local head = code .. ' ' .. gid .. ' ' .. uid .. ' ' .. string.sub(payload, 1, 2048)
  redis.call('LPUSH', at('aside'), head)
  redis.call('LTRIM', at('aside'), 0, 255)
end

-- Its items (one call, however many), its size, its place among the open, its time to live.
local function keep(group, id_json)
  local gid = group.gid
  redis.call('HSET', group_of(gid), unpack(group.fields))
  if group.mark ~= seen.mark then seen.groups = seen.groups + 1 end
  local bytes = group.bytes + group.added
  local meta = { 'state', group.state, 'id', id_json, 'n', group.n, 'bytes', bytes, 'mark', seen.mark }
  local function note(name, value) meta[#meta + 1], meta[#meta + 2] = name, value end
  if group.rewarded > 0 then
    note('reward_sum', string.format('%.17g', group.reward_sum))
    note('rewarded', group.rewarded)
  end
  if group.assumed then
    note('start', group.start)
    note('counted', '1')
    note('assumed', group.assumed)
  end
  redis.call('HSET', meta_of(gid), unpack(meta))
  room.bytes = room.bytes + group.added
  if not group.known then room.groups = room.groups + 1 end
  if group.state ~= 'open' then
    if policy and too_old(group.start) then ripen(gid) end -- the item lowered its start
    return
  end
  if set.custom ~= 1 and group.n >= set.finish_at then
    if not policy then return enter_ready(gid, 'count', now, group.known) end
    local slot = group.maker and group.maker.id or group.slot
    return enter_ready(gid, 'count', now, group.known, {group.start, group.counted, slot, now})
  end
  redis.call('ZADD', at('open'), now, gid)
  redis.call('PEXPIRE', group_of(gid), set.open_ttl_ms)
  redis.call('PEXPIRE', meta_of(gid), set.open_ttl_ms + set.idle_ttl_ms) -- outlives the items
  if set.custom == 1 then
    redis.call('ZADD', at('changed'), now, gid)
    ring()
    if group.maker and group.n >= set.finish_at then -- it waits for a verdict, and for no items
      drop_slot(group.maker.id)
      redis.call('HDEL', meta_of(gid), 'slot')
    end
  end
end
