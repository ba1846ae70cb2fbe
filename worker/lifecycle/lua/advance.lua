-- advance.lua: a sandbox has come to its next state, if it is still its owner's.
-- KEYS   registry leases permits sessions
-- ARGV   name fence state, then for each further field: field value
-- REPLY  1 noted | 0 the record is somebody else's by now
-- include: records.lua
local name = ARGV[1]
if not holds(name, ARGV[2]) then return 0 end
call('HSET', box(name), 'state', unpack(ARGV, 3))
if ARGV[3] == 'READY' then
  count('ready')
  local instance = call('HGET', box(name), 'instance')
  if instance then call('HSET', SESSIONS, instance, name) end
end
return 1
