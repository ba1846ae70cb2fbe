-- renew.lua: one process's heartbeat for its sandboxes.
-- KEYS   registry leases permits sessions
-- ARGV   for each: name fence lease_us
-- REPLY  for each: 1 held | 0 lost
--
-- Late is in time, as long as nobody has claimed the record.
-- include: records.lua
local reply = {}
for i = 1, #ARGV, 3 do
  local held = holds(ARGV[i], ARGV[i + 1])
  if held then keep(ARGV[i], ARGV[i + 2]) end
  reply[#reply + 1] = held and 1 or 0
end
return reply
