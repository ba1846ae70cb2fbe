-- note.lua: what clients have of their answers, which calls have none, which are still under way.
-- KEYS   root
-- ARGV   lease_ms, then for each: sid call fence what(2 or 3 as in session.lua, b, B, or r: renew)
-- REPLY  how many of them were as said
-- include: clock.lua
-- include: session.lua
-- A full Redis refuses a script's first write if it needs memory, and none after one that does not.
-- So this begins with one that never needs any: a renewal must not fail then.
redis.call('ZREMRANGEBYSCORE', ROOT .. ':sessions', '-inf', '-inf')
local noted = 0
for sid, call, fence, what in each() do
  local state = state_of(sid, call)
  if what == 'r' then
    noted = noted + redis.call('ZADD', of(sid, ':open'), 'XX', 'CH', clock + LEASE_MS, call)
  elseif what == 'b' or what == 'B' then
    local record = BROKEN[state] and redis.call('HGET', of(sid, ':calls'), call)
    if record and string.match(record, '^o(%x+)') == fence then
      give_up(sid, call, what)
      wake_drained(sid, redis.call('HGET', of(sid, ''), 'state'))
      noted = noted + 1
    end
  elseif state == '1' or state == '3' then
    set_state(sid, call, what)
    redis.call('ZREM', of(sid, ':open'), call)
    redis.call('HINCRBY', of(sid, ''), 'snap', 1)
    wake_joined(sid, call)
    wake_drained(sid, redis.call('HGET', of(sid, ''), 'state'))
    noted = noted + 1
  end
end
return noted
