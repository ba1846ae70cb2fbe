-- commit.lua: store a call's answer, before any of it leaves. A repeat changes nothing.
-- KEYS   root
-- ARGV   sid call fence lease_ms idle_ms most_bytes tokens reached(empty if nothing may continue it)
--        continues(the call that it continues by ids, or empty) answer_ms answer record
-- REPLY  done | unknown | over | spent | conflict | lost(Redis does not know that it began)
-- include: clock.lua
-- include: session.lua
local index, calls = of(SID, ':index'), of(SID, ':calls')
local s = redis.call('HMGET', of(SID, ''), 'state', 'bytes', 'renewed')
if not s[1] then return 'unknown' end
if s[1] ~= 'live' and s[1] ~= 'draining' then return 'over' end
local before = redis.call('HGET', calls, CALL)
local state = state_of(SID, CALL)
if before ~= RECORD then
  if not before or string.match(before, '^[od](%x+)') ~= FENCE then return 'lost' end
  if DONE[state] then
    set_state(SID, CALL, 'x')
    return 'conflict'
  end
  if s[2] + #RECORD > tonumber(MOST_BYTES) then
    if BROKEN[state] then give_up(SID, CALL, 'b') end
    return 'spent'
  end
  if state == 'b' or state == 'B' then redis.call('HINCRBY', of(SID, ''), 'broken', -1) end
  redis.call('HSET', calls, CALL, RECORD)
  redis.call('HINCRBY', of(SID, ''), 'bytes', #RECORD)
  redis.call('HINCRBY', of(SID, ''), 'tokens', TOKENS)
  redis.call('HINCRBY', ROOT .. ':state', 'session_bytes', #RECORD)
end
-- Until the client has it all, its process keeps the lease.
redis.call('ZADD', of(SID, ':open'), clock + LEASE_MS, CALL)
if not DONE[state] then set_state(SID, CALL, '1') end
if CONTINUES ~= '' then
  redis.call('SETRANGE', of(SID, ':states'), 2 * (CONTINUES - 1) + 1, 'c')
end
if REACHED ~= '' then
  -- Of two equal conversations the one is meant that was continued, else the newest.
  local other = redis.call('HGET', index, 'h' .. REACHED)
  local at = other and 2 * (string.match(other, '%d+') - 1) + 1
  if not other or redis.call('GETRANGE', of(SID, ':states'), at, at) ~= 'c' then
    redis.call('HSET', index, 'h' .. REACHED, CALL .. ' ' .. FENCE)
  end
end
if ANSWER ~= '' then redis.call('SET', of(SID, ':answer:' .. CALL), ANSWER, 'PX', ANSWER_MS) end
redis.call('HSET', of(SID, ''), 't', clock)
renew(SID, s[3], IDLE_MS) -- nobody sweeps what all gateways have left
wake_joined(SID, CALL)
wake_drained(SID, s[1])
return 'done'
