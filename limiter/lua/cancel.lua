-- cancel.lua: leave the line, or give back a permit that was granted at the same moment.
-- KEYS   gate leases holders queue waiters alive
-- ARGV   limit rate burst process counter('timeouts'|'cancelled'), then for each: id
-- REPLY  {now_us, wake_us, grants, limit, in_flight, up to 5 holders, paused(1|0),
--         then for each: place it had (in its share's line), or 0}
--
-- A permit that is given back counts as released too, so that the permits in flight are always
-- granted + readmitted - released - expired.
-- include: line.lua
local reply, gone, ids = { now, 0, '', '', 0, '', 0 }, 0, {}
for id in each() do
  ids[#ids + 1] = id
  local rank = gate.sharing and gate.sharing.rank(id, call('HGET', WAITERS, id)) or call('ZRANK', QUEUE, id)
  local held = fence_of(id)
  if held then gate.released = gate.released + 1 end
  if rank or held then gone = gone + 1 end
  reply[#reply + 1] = rank and rank + 1 or 0
end
leave(ids)
free(ids)
count(COUNTER, gone)
expire()
hand_over()
reply[2], reply[3], reply[4], reply[5] = settle(), own, fields[1], gate.live
local by = {}
for _, id in ipairs(call('ZRANGE', LEASES, 0, 4)) do
  by[#by + 1] = string.match(call('HGET', HOLDERS, id) or '', '|(.-)|') or id
end
reply[6], reply[7] = table.concat(by, ' '), (fields[4] or '0') ~= '0' and 1 or 0
return reply
