-- forget.lua: a sandbox is gone, or was never made; its permits are free already.
-- KEYS   registry leases permits sessions
-- ARGV   name fence counter
-- REPLY  1 forgotten | 0 the record is somebody else's by now
-- include: records.lua
if not holds(NAME, FENCE) then return 0 end
local instance = call('HGET', box(NAME), 'instance')
if instance then
  if call('HGET', SESSIONS, instance) == NAME then call('HDEL', SESSIONS, instance) end
  -- Callers that wait for the session to be opened read this, however late.
  local ended = REGISTRY .. ':told:' .. NAME
  call('XADD', ended, '*', 'what', COUNTER)
  call('EXPIRE', ended, 600)
end
count(COUNTER)
drop(NAME)
return 1
