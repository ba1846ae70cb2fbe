-- condemn.lua: leave a sandbox to the reaper, which will try, and try again, to end it.
-- KEYS   registry leases permits sessions
-- ARGV   name fence('' whoever's it is) wait_us gone_after_us('' as it stands) why
-- REPLY  1 left to it | 0 the record is somebody else's by now
--
-- gone_after: from then on a provider that cannot find it by name is believed.
-- include: records.lua
local name, why = ARGV[1], ARGV[5]
local state = call('HGET', box(name), 'state')
if not state or (ARGV[2] ~= '' and not holds(name, ARGV[2])) then return 0 end
if state ~= 'TERMINATING' then call('HSET', box(name), 'was', state) end
call('HSET', box(name), 'state', 'TERMINATING', 'fence', next_fence(), 'error', why)
if ARGV[4] ~= '' then call('HSET', box(name), 'gone_after', number(now + ARGV[4])) end
call('HINCRBY', box(name), 'tries', ARGV[2] == '' and 0 or 1)
call('ZADD', LEASES, number(now + ARGV[3]), name)
count(ARGV[2] == '' and 'killed' or 'handed_over')
return 1
