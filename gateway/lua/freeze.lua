-- freeze.lua: no call begins any more; without `drain` those that are open have no answer.
-- KEYS   root
-- ARGV   sid drain(2: also for what its process is about to say; 1: for calls under way; 0) idle_ms(it ends because it was idle for so long, or empty)
-- REPLY  {unknown} | {draining, ms until the first lease of those under way ends} | {unsaid} | {more} | {alive} (it is not idle) | {frozen or final}
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
local alive, unsaid = {}, false
for i = 1, #open, 2 do
  local state, lease = state_of(SID, open[i]), open[i + 1] - clock
  local broken = BROKEN[state]
  if broken and lease > 0 then
    alive[#alive + 1] = {open[i], broken, lease}
  elseif broken then
    give_up(SID, open[i], broken)
  elseif state == '1' and lease > 0 and DRAIN == '2' then
    unsaid = true
  else
    redis.call('ZREM', of(SID, ':open'), open[i])
  end
end
if DRAIN ~= '0' and #alive > 0 then return {'draining', alive[1][3]} end
if unsaid then return {'unsaid'} end
if idle or #alive > 0 then redis.call('HSET', of(SID, ''), 'cut', idle and 'idle' or 'open') end
for _, call in ipairs(alive) do give_up(SID, call[1], call[2]) end
if #open == 512 then return {'more'} end
redis.call('HSET', of(SID, ''), 'state', 'frozen')
return {'frozen'}
