-- open.lua: open the session of one trajectory, if the task has room for it.
-- KEYS   root
-- ARGV   sid most idle_ms seconds(it may last so long; 0: without a bound), then for each: name value
-- REPLY  {live, its sampling, which is its first opener's} | {frozen, draining, final, full_sessions or full_bytes}
-- include: buffer:task.lua
-- include: session.lua
-- include: epoch.lua
local before = redis.call('HMGET', of(SID, ''), 'state', 'sampling')
if before[1] then return before end
if redis.call('ZCARD', at('sessions')) >= tonumber(MOST) then return {'full_sessions'} end
if figure('bytes', 'session_bytes') >= set.max_bytes then return {'full_bytes'} end
local facts = {'state', 'live', 't', clock, 'seq', 0, 'bytes', 0, 'tokens', 0, 'epoch', epoch()}
if tonumber(SECONDS) > 0 then
  facts[#facts + 1], facts[#facts + 2] = 'until', clock + math.floor(SECONDS * 1000)
end
for name, value in each() do facts[#facts + 1], facts[#facts + 2] = name, value end
redis.call('ZADD', at('sessions'), clock + IDLE_MS, SID)
redis.call('HSET', of(SID, ''), unpack(facts))
redis.call('PEXPIRE', of(SID, ''), 2 * IDLE_MS)
return {'live', redis.call('HGET', of(SID, ''), 'sampling')}
