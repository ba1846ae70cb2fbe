-- grant_slots.lua: slots for groups to be made: first those that wait to be gone on with, then those to
-- be made again, then new ones, as far as there is room. Who gets none waits in order for a bell.
-- KEYS   root
-- ARGV   ask owner want(0: it waits no more) lives_ms(how long it is waited for; 0: it does not wait)
--        then for each wish: id_json id round
-- REPLY  {version(-1 before any is published) lease_ms max_age due_ms(when time alone may bring slots to the
--        first in the line; -1 for others; -2 for the first, and for one that does not wait, while a publication
--        has steps left, which catch_up.lua does)
--        then for each slot: id fence gid id_json start attempt missing parts(a JSON list of what was parked)};
--        repeating an ask repeats its slots, as long as their first lease
-- include: timeouts.lua
-- include: next_due.lua
-- include: slot_group.lua
-- include: idle.lua
if not terms then return redis.error_reply('NOPOLICY ' .. ROOT) end

local want, wishes, fence = tonumber(WANT), each_wish(), nil

local function leave_line(n)
  if not redis.call('ZSCORE', at('waiting'), ASK) then return end
  if n > 0 then
    count('admission_waited_ms', now - tonumber(redis.call('HGET', at('asks'), 'since:' .. ASK) or now))
    count('admissions_waited', n)
  end
  redis.call('HDEL', at('asks'), ASK, 'since:' .. ASK)
  redis.call('DEL', at('turn:' .. ASK))
  redis.call('ZREM', at('waiting'), ASK)
end

local function wait_in_line()
  redis.call('ZADD', at('waiting'), 'NX', redis.call('HINCRBY', at('policy'), 'tickets', 1), ASK)
  redis.call('HSET', at('asks'), ASK, string.format('%d %d', want, now + LIVES_MS))
  redis.call('HSETNX', at('asks'), 'since:' .. ASK, string.format('%d', now))
end

-- What those before it in the line are to have.
local function wanted_before(limit)
  local sum = 0
  if redis.call('EXISTS', at('waiting')) == 0 then return 0 end
  for ask, wanted in each_waiter(0) do
    if ask == ASK or sum >= limit then return sum end
    sum = sum + wanted
  end
  return sum
end

local function tell_slot(reply, id)
  local slot = redis.call('HMGET', slot_of(id), 'fence', 'gid', 'id', 'start', 'attempt')
  if not slot[1] then return end
  local missing, parts = set.group_size, {}
  if slot[2] ~= '' then
    local meta = redis.call('HMGET', meta_of(slot[2]), 'n', 'start')
    missing = missing - tonumber(meta[1] or '0')
    slot[4] = meta[2] or slot[4]
    local parked = redis.call('HGETALL', partial_of(slot[2]))
    for i = 1, #parked, 2 do -- without those of items that came whole meanwhile, under no slot
      if redis.call('HEXISTS', group_of(slot[2]), parked[i]) == 0 then
        parts[#parts + 1] = string.match(parked[i + 1], '^%d+ (.*)$')
      end
    end
  end
  for _, said in ipairs({id, slot[1], slot[2], slot[3], slot[4], slot[5], missing,
    '[' .. table.concat(parts, ',') .. ']'}) do reply[#reply + 1] = said end
end

local function grant(n, gid)
  local number = string.format('%d', fence + n)
  local slot = {id = ASK .. '.' .. number, fence = number, granted = now,
    start = policy.version, counts = true}
  redis.call('ZADD', at('slots'), now + policy.slot_lease_ms, slot.id)
  redis.call('HSET', slot_of(slot.id), 'fence', slot.fence, 'owner', OWNER, 'gid', '', 'id', '',
    'start', slot.start, 'counts', 1, 'attempt', 1, 'granted', now, 'lease', policy.slot_lease_ms)
  tally(slot.start, 1)
  if gid then
    local id_json = redis.call('HGET', meta_of(gid), 'id')
    return bind(slot, gid, id_json or cjson.encode(instance_of(gid)))
  end
  for wish_json, id, round in wishes do
    local number = free_round(id, round)
    if number then return bind(slot, id .. ':' .. number, wish_json) end
    if round ~= '' then return end
  end
end

-- The first that waits for a slot; one that is closed by now, or is another slot's, does not.
local function next_of(index)
  while true do
    local gid = redis.call('ZRANGE', at(index), 0, 0)[1]
    local meta = gid and redis.call('HMGET', meta_of(gid), 'state', 'slot')
    if not gid or not CLOSED[meta[1]] and not (meta[2] and redis.call('ZSCORE', at('slots'), meta[2])) then return gid end
    redis.call('ZREM', at(index), gid)
  end
end

local function granted()
  local open, free = redis.call('ZCARD', at('parked')), math.max(0, free_room())
  local mine = open + free
  if mine > 0 then mine = mine - wanted_before(mine) end
  mine = math.min(want, mine)
  if mine < 1 then return 0 end
  -- Above the last one, and the clock's: what Redis forgot is not given out a second time.
  fence = math.max(policy.fence or 0, stamp[1] * 1000000 + stamp[2])
  redis.call('HSET', at('policy'), 'fence', string.format('%d', fence + mine))
  redis.call('SET', at('granted:' .. ASK), string.format('%d %d', fence + 1, fence + mine),
    'PX', policy.slot_lease_ms) -- before them: a repeat finds those that there are
  local n = 0
  while n < mine do
    local gid = n < open and next_of('parked')
    if not gid then
      if free < 1 then break end
      free, gid = free - 1, next_of('again')
    end
    n = n + 1
    grant(n, gid)
    if gid then -- its slot has it by now
      redis.call('ZREM', at('parked'), gid)
      redis.call('ZREM', at('again'), gid)
    end
  end
  return n
end

return whole(function()
  wake()
  do_due(8)
  local reply = {policy and policy.version or -1, terms.slot_lease_ms, terms.max_age, -1}

  -- Those of these numbers that are not over.
  local function tell_slots(first, last)
    for number = first, last do tell_slot(reply, string.format('%s.%d', ASK, number)) end
  end

  if policy then
    local first, last = string.match(redis.call('GET', at('granted:' .. ASK)) or '', '^(%d+) (%d+)$')
    if first then tell_slots(tonumber(first), tonumber(last)) end
  end
  local busy = policy and not settled()
  if #reply == 4 and want > 0 then
    local n = policy and granted() or 0
    if n > 0 then tell_slots(fence + 1, fence + n) end
    if n == 0 and LIVES_MS ~= '0' then
      wait_in_line()
      if wanted_before(1) == 0 then reply[4] = busy and -2 or next_due() end
    else
      if n == 0 and busy then reply[4] = -2 end
      leave_line(n)
    end
    count('slots_granted', n)
  elseif want == 0 then
    leave_line(0)
  end
  touched = true -- others in the line may have their turn
  return reply
end)
