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
-- Libraries that went on without a server renewed by a clock that is set back now: no slot, and no
-- place in the line, lasts longer than if it were granted now.
local function shorten_leases()
  if not policy then return end
  local most = now + policy.slot_lease_ms
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', at('slots'), most, '+inf')) do
    redis.call('ZADD', at('slots'), most, id)
  end
  for _, ask in ipairs(redis.call('ZRANGE', at('waiting'), 0, -1)) do
    local want, lives = string.match(redis.call('HGET', at('asks'), ask) or '', '^(%d+) (%d+)$')
    if want and tonumber(lives) > now + 10000 then
      redis.call('HSET', at('asks'), ask, string.format('%d %d', want, now + 10000))
    end
  end
end

return whole(function()
  if SERVED == '1' then
    local beat = tonumber(redis.call('HGET', at('state'), 'beat') or '')
    local real = now + paused
    local gap = beat and real - beat > tonumber(GAP_MS)
    redis.call('HSET', at('state'), 'beat', real, 'paused', gap and paused + real - beat or paused)
    if gap then
      paused, now = paused + real - beat, now - (real - beat)
      shorten_leases()
    end
  end
  local done = do_due(tonumber(LIMIT))
  if SERVED == '1' then do_chores() end
  trim(1000)
  doze()
  return {done, next_due(), SERVED == '1' and -1 or available()}
end)
