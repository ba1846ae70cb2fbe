-- keep.lua: what is noted of a group that took items, and of items that it did not take.
-- Late and surplus items are kept for inspection: the newest few, their first 2 kB.
local function set_aside(gid, code, uid, payload)
  local head = code .. ' ' .. gid .. ' ' .. uid .. ' ' .. string.sub(payload, 1, 2048)
  redis.call('LPUSH', at('aside'), head)
  redis.call('LTRIM', at('aside'), 0, 255)
end

-- Its items (one call, however many), its place, its size, its time to live.
local function keep(group, id_json)
  local gid = group.gid
  if #group.fields > 0 then redis.call('HSET', group_of(gid), unpack(group.fields)) end
  if not seen then load_seen() end
  if group.mark ~= seen.mark then seen.groups = seen.groups + 1 end
  local bytes = group.bytes + group.added
  local meta = {'id', id_json, 'n', group.n, 'bytes', bytes, 'mark', seen.mark}
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
  function meta.count()
    count('bytes', group.added)
    if group.stood then group.stood() end
  end
  room.bytes = room.bytes + group.added
  if not group.known then room.groups = room.groups + 1 end
  -- Its place is noted before it is known: a repeat of these items writes them again until then.
  if group.state == 'open' and set.custom ~= 1 and group.n >= set.finish_at then
    local slot = group.maker and group.maker.id or group.slot
    finish(gid, 'count', now, group.known, policy and {group.start, group.counted, slot}, meta)
    unplaced = nil
    if group.parts then forget_parts(group) end
    return
  end
  if group.state == 'open' then
    redis.call('ZADD', at('open'), now, gid)
    if set.custom == 1 then redis.call('ZADD', at('changed'), now, gid) end
  end
  redis.call('HSET', meta_of(gid), 'state', group.state, unpack(meta))
  unplaced = nil
  meta.count()
  if group.parts then forget_parts(group) end
  if group.state ~= 'open' then
    if group.stood then restand(group) end
    if policy and too_old(group.start) then end_too_old(gid) end -- the item lowered its start
    return
  end
  if group.stood then hush_maker(group) end
  redis.call('PEXPIRE', group_of(gid), set.open_ttl_ms)
  redis.call('PEXPIRE', meta_of(gid), set.open_ttl_ms + set.idle_ttl_ms) -- outlives the items
  if set.custom == 1 then
    ring()
    if group.maker and group.n >= set.finish_at then -- it waits for a verdict, and for no items
      drop_slot(group.maker.id)
      redis.call('HDEL', meta_of(gid), 'slot')
    end
  end
end
