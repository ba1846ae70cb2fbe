-- freeze.lua: no call begins any more; without `drain` those that are open have no answer.
-- KEYS   root
-- ARGV   sid drain(1 or 0) idle_ms(it ends because it was idle for so long, or empty)
-- REPLY  {unknown} | {draining, ms until the first lease of those under way ends} | {more} | {alive} (it is not idle) | {frozen or final}
-- include: clock.lua
-- include: session.lua
local s = redis.call('HMGET', of(SID, ''), 'state', 't')
if not s[1] then return {'unknown'} end
if s[1] == 'final' then return {'final'} end
local idle = IDLE_MS ~= ''
if idle and s[2] + IDLE_MS > clock then return {'alive'} end -- or its trainer finalizes it just now
if s[1] == 'frozen' then return {'frozen'} end
-- One that is idle stays so: if the buffer has no room for it now, a sweep tries it again.
redis.call('HSET', of(SID, ''), 'state', 'draining', 't', idle and s[2] or clock)
local open = redis.call('ZRANGE', of(SID, ':open'), 0, 255, 'WITHSCORES')
local alive = {}
for i = 1, #open, 2 do
  local broken = BROKEN[state_of(SID, open[i])]
  if broken and tonumber(open[i + 1]) > clock then
    alive[#alive + 1] = {open[i], broken, open[i + 1] - clock}
  elseif broken then
    give_up(SID, open[i], broken)
  else
    redis.call('ZREM', of(SID, ':open'), open[i])
  end
end
if DRAIN == '1' and #alive > 0 then return {'draining', alive[1][3]} end
if idle or #alive > 0 then redis.call('HSET', of(SID, ''), 'cut', idle and 'idle' or 'open') end
for _, call in ipairs(alive) do give_up(SID, call[1], call[2]) end
if #open == 512 then return {'more'} end
redis.call('HSET', of(SID, ''), 'state', 'frozen')
return {'frozen'}
