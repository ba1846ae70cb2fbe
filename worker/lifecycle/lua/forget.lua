-- forget.lua: a sandbox is gone, or was never made; its permits are free already.
-- KEYS   registry leases permits sessions
-- ARGV   name fence counter
-- REPLY  1 forgotten | 0 the record is somebody else's by now
-- include: records.lua
local name = ARGV[1]
if not holds(name, ARGV[2]) then return 0 end
local instance = call('HGET', box(name), 'instance')
if instance then
  if call('HGET', SESSIONS, instance) == name then call('HDEL', SESSIONS, instance) end
  -- Whoever waits for the session to be opened reads this, however late.
  local told = REGISTRY .. ':told:' .. name
  call('XADD', told, '*', 'what', ARGV[3])
  call('EXPIRE', told, 600)
end
call('DEL', box(name))
call('ZREM', LEASES, name)
call('HDEL', PERMITS, name)
count(ARGV[3])
return 1
