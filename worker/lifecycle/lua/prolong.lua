-- prolong.lua: the provider ends a sandbox at another time than was written.
-- KEYS   registry leases permits sessions
-- ARGV   name fence dies_after_us
-- REPLY  1 noted | 0 the record is somebody else's by now
-- include: records.lua
if not holds(NAME, FENCE) then return 0 end
call('HSET', box(NAME), 'dies_at', number(now + DIES_AFTER_US))
return 1
