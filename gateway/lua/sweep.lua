-- sweep.lua: calls whose process is gone have no answer; sessions that are idle are named.
-- KEYS   root
-- ARGV   idle_ms most name(of the gateway that asks, which lives; or empty) facts(its engines that fail, JSON)
-- REPLY  the sessions that were idle for too long
-- include: clock.lua
-- include: session.lua
local idle, expired, sessions = {}, false, ROOT .. ':sessions'
local due = redis.call('ZRANGEBYSCORE', sessions, '-inf', clock, 'LIMIT', 0, MOST)
for _, sid in ipairs(due) do
  local s = redis.call('HMGET', of(sid, ''), 't', 'state', 'renewed')
  local t = tonumber(s[1] or '')
  for _, id in ipairs(t and redis.call('ZRANGEBYSCORE', of(sid, ':open'), '-inf', clock, 'LIMIT', 0, 64) or {}) do
    local broken = BROKEN[state_of(sid, id)]
    if broken then give_up(sid, id, broken) else redis.call('ZREM', of(sid, ':open'), id) end
  end
  local open = redis.call('ZRANGE', of(sid, ':open'), 0, 0, 'WITHSCORES')
  if not t then -- all gateways were away for so long that nobody knows how large it was
    redis.call('UNLINK', of(sid, ':calls'), of(sid, ':index'), of(sid, ':states'), of(sid, ':open'))
    expired = true
  end
  if not t or s[2] == 'final' then
    redis.call('ZREM', sessions, sid)
  elseif open[2] then
    redis.call('ZADD', sessions, open[2], sid)
    renew(sid, s[3], IDLE_MS)
  elseif t + IDLE_MS > clock then
    redis.call('ZADD', sessions, t + IDLE_MS, sid)
  else
    idle[#idle + 1] = sid
    redis.call('ZADD', sessions, clock + 60000, sid) -- if its finder dies, another one finds it
  end
end
if expired and #due < tonumber(MOST) then
  local bytes = 0
  for _, sid in ipairs(redis.call('ZRANGE', sessions, 0, -1)) do
    bytes = bytes + (redis.call('HGET', of(sid, ''), 'bytes') or 0)
  end
  if bytes == 0 then
    redis.call('HDEL', ROOT .. ':state', 'session_bytes')
  else
    redis.call('HSET', ROOT .. ':state', 'session_bytes', bytes)
  end
end
if NAME ~= '' then
  redis.call('HSET', ROOT .. ':gateways', NAME, string.format('%d ', clock) .. FACTS)
  redis.call('PEXPIRE', ROOT .. ':gateways', 3600000)
end
return idle
