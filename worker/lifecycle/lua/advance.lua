-- advance.lua: a sandbox has come to its next state, if it is still its owner's.
-- KEYS   registry leases permits sessions
-- ARGV   name fence state, then for each further: field value
-- REPLY  1 noted | 0 the record is somebody else's by now
--        | -1 the session that it would be was ended meanwhile, or is opened by another caller
-- include: records.lua
if not holds(NAME, FENCE) then return 0 end
if STATE == 'READY' then
  local known = call('HMGET', box(NAME), 'instance', 'opening')
  local instance, opening = known[1], known[2]
  if opening then
    local current = call('HGET', SESSIONS, instance)
    if current ~= opening and current ~= NAME then return -1 end
  end
  call('HSET', box(NAME), 'state', STATE, unpack(ARGV, REST))
  count('ready')
  if instance then call('HSET', SESSIONS, instance, NAME) end
else
  call('HSET', box(NAME), 'state', STATE, unpack(ARGV, REST))
end
return 1
