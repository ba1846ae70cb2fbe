-- sweep.lua: do what is due. A server of the task calls it all the time (`served` 1): the time
-- between two calls in which none lived is taken off the clock.
-- KEYS   root
-- ARGV   limit served gap_ms
-- REPLY  {done, next_due_ms, available(groups that a take would get; -1 if served)}
-- include: timeouts.lua
-- include: all_groups_in_steps.lua
-- include: next_due.lua
-- include: idle.lua
-- include: ready_order.lua
-- Libraries that went on without a server renewed by a clock that is set back now: no batch, no slot and no
-- place in the line lasts longer than if it were granted now, and no group was written to later than now.
local SET_BACK = {
  leases = function(cursor)
    return each_of('leases', cursor, function(receipt)
      local batch = at('batch:' .. receipt)
      local had = redis.call('HMGET', batch, 'since', 'until')
      if had[1] and tonumber(had[1]) > now then
        local ends = now + had[2] - had[1]
        redis.call('HSET', batch, 'since', now, 'until', ends)
        redis.call('ZADD', at('leases'), ends, receipt)
      end
    end)
  end,
  open = function()
    return first_of('open', string.format('(%d', now), '+inf', function(gid) redis.call('ZADD', at('open'), now, gid) end)
  end,
  slots = function()
    if not policy then return '0' end
    local most = now + policy.slot_lease_ms
    return first_of('slots', string.format('(%d', most), '+inf', function(id) redis.call('ZADD', at('slots'), most, id) end)
  end,
  waiting = function(cursor)
    if not policy then return '0' end
    return each_of('waiting', cursor, function(ask)
      local want, lives = string.match(redis.call('HGET', at('asks'), ask) or '', '^(%d+) (%d+)$')
      if want and tonumber(lives) > now + 10000 then
        redis.call('HSET', at('asks'), ask, string.format('%d %d', want, now + 10000))
      end
    end)
  end,
}
local AFTER = {leases = 'open', open = 'slots', slots = 'waiting'}

-- Some steps of that, of some hundred members in all. The next call goes on with what is left.
local function set_back(index, cursor)
  while index and worked < STEP do
    cursor = SET_BACK[index](cursor)
    if cursor == '0' then index = AFTER[index] end
  end
  if index then
    redis.call('HSET', at('state'), 'set_back', index .. ' ' .. cursor)
  else
    redis.call('HDEL', at('state'), 'set_back')
  end
end

-- How many a take would get now, two rounds of one instance or not. Of each start it gets as many as
-- the older ones leave room for (`may_take`), and each of them takes a place of all that follow.
local function available()
  if not policy then return redis.call('ZCARD', at('ready')) end
  local left = math.max(0, policy.groups_per_version - policy.taken)
  if policy.order == 'batch' then
    return math.min(left, redis.call('ZCOUNT', at('targeted'), '-inf', string.format('(%d', policy.version + 1)))
  end
  load_outstanding()
  local starts, found, taken = {}, 0, policy.taken
  for start, n in pairs(outstanding) do
    if n > 0 and not too_old(start) then starts[#starts + 1] = start end
  end
  table.sort(starts)
  for _, start in ipairs(starts) do
    local ready = redis.call('ZCOUNT', at('aged'), start, string.format('(%d', start + 1))
    local some = math.max(0, math.min(ready, may_take(start)))
    if ready > 0 then found, policy.taken = found + some, policy.taken + some end
    outstanding[start] = outstanding[start] - some
    if some < ready then break end
  end
  policy.taken, outstanding = taken, nil -- as they were
  return found
end

-- A task with nothing in it goes away after a while.
local function doze()
  if set.idle == 1 then return end
  for _, index in ipairs({'open', 'ready', 'leased', 'slots', 'parked', 'again'}) do
    if redis.call('EXISTS', at(index)) == 1 then return end
  end
  if each_waiter(0)() then return end -- it takes those that died out of the line
  save_sums()
  save_reports()
  redis.call('HSET', at('state'), 'bytes', 0)
  for _, part in ipairs(fixed()) do redis.call('PEXPIRE', at(part), set.idle_ttl_ms) end
  redis.call('HSET', at('config'), 'idle', 1)
end

return whole(function()
  if SERVED == '1' then
    local noted = redis.call('HMGET', at('state'), 'beat', 'set_back')
    local beat, left, real = tonumber(noted[1] or ''), noted[2], now + paused
    if beat and real - beat > tonumber(GAP_MS) then
      paused, now, left = paused + real - beat, now - (real - beat), 'leases 0'
      redis.call('HSET', at('state'), 'beat', real, 'paused', paused, 'set_back', left)
    else
      redis.call('HSET', at('state'), 'beat', real, 'paused', paused)
    end
    if left then set_back(string.match(left, '^(%S+) (%d+)$')) end
  end
  local done = do_due(tonumber(LIMIT))
  if SERVED == '1' then do_chores() end
  trim(1000)
  doze()
  return {done, next_due(), SERVED == '1' and -1 or available()}
end)
