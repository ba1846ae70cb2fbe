-- put_item.lua: what happens to one item: 1 stored 2 repeated 3 late 4 surplus 5 full 6 lost 8 foreign;
-- 0: it is the next round's.
local MOST_RAW = 2000000 -- entries, two for each item: while nobody takes, the newest million

-- An item may be there before its group counts it: a script stopped in between. Its repeat corrects that.
local function recount_items(group)
  if group.state ~= 'open' or group.recounted then return end
  group.recounted = true
  local unwritten = #group.fields / 2 -- items of this call
  if redis.call('HLEN', group_of(group.gid)) + unwritten == group.n then return end
  local items, bytes = redis.call('HVALS', group_of(group.gid)), 0
  for _, said in ipairs(items) do bytes = bytes + #said - #string.match(said, '^%d+ ') end
  if policy then
    for _, part in ipairs(redis.call('HVALS', partial_of(group.gid))) do bytes = bytes + #part end
  end
  group.n, group.added, group.corrected = #items + unwritten, group.added + bytes - group.bytes, true
end

local function put(group, uid, reward, payload)
  if group.put[uid] then return 2 end
  if group.foreign then return 8 end
  if group.known and redis.call('HEXISTS', group_of(group.gid), uid) == 1 then
    recount_items(group)
    return 2
  end
  if was_before(group, uid) then return 2 end
  if group.lost then return 6 end
  if moves_on(group) then return 0 end
  if group.closed then return 3 end
  if group.full and not (group.parks and is_parked(group, uid)) then return 5 end
  local most = set.custom == 1 and group.state == 'open' and set.most or set.group_size
  if group.n >= most then return 4 end
  local fields = group.fields
  fields[#fields + 1], fields[#fields + 2] = uid, group.n .. ' ' .. payload
  group.put[uid] = true
  group.n, group.added = group.n + 1, group.added + #payload
  if tonumber(reward) then
    group.reward_sum, group.rewarded = group.reward_sum + tonumber(reward), group.rewarded + 1
  end
  see(reward)
  if set.custom_meta == 1 and redis.call('RPUSH', at('raw'), group.gid, uid) > MOST_RAW then
    redis.call('LPOP', at('raw'))
    redis.call('LPOP', at('raw'))
  end
  if group.parks then replace_part(group, uid) end
  return 1
end
