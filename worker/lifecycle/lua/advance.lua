-- advance.lua: a sandbox has come to its next state, if it is still its owner's.
-- KEYS   registry leases permits sessions
-- ARGV   name fence state, then for each further: field value
-- REPLY  1 noted | 0 the record is somebody else's by now
--        | -1 the session that it would be was ended meanwhile, or is opened by another caller
-- include: records.lua
if not holds(NAME, FENCE) then return 0 end
local session = STATE == 'READY' and call('HMGET', box(NAME), 'instance', 'opening')
if session and session[2] then
  local current = call('HGET', SESSIONS, session[1])
  if current ~= session[2] and current ~= NAME then return -1 end
end
call('HSET', box(NAME), 'state', STATE, unpack(ARGV, REST))
if session then
  count('ready')
  if session[1] then call('HSET', SESSIONS, session[1], NAME) end
end
return 1
