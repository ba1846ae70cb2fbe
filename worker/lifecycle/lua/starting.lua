-- starting.lua: whether a sandbox's STARTING permits are needed any longer, and why not.
-- KEYS   registry leases permits sessions
-- ARGV   name longest_us(that a start may take, and a grace)
-- REPLY  'held' | 'ready' it has started | 'gone' it has no record
--        | 'abandoned' nobody has been starting it for too long, whatever became of it
--
-- A record whose owner is dead stays until its sandbox is proven gone, which may take a machine that
-- never comes back. Its start has ended with its owner, and needs no such proof.
-- include: records.lua
local known = call('HMGET', box(NAME), 'state', 'made')
if not known[1] then return 'gone' end
if known[1] == 'READY' then return 'ready' end
local orphaned = known[1] == 'TERMINATING' or tonumber(call('ZSCORE', LEASES, NAME) or 0) <= now
local over = tonumber(known[2] or 0) + LONGEST_US <= now
return orphaned and over and 'abandoned' or 'held'
