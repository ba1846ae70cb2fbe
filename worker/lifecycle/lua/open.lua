-- open.lua: write down a sandbox before it is made, with the permits that it starts under.
-- KEYS   registry leases permits sessions
-- ARGV   name owner lease_us fleet permits_held(JSON, or '') dies_after_us,
--        then for each further: field value
-- REPLY  {fence, fleet}; fence is '' where the record is not the caller's any more
--
-- Asking again with the same name is harmless. The lease is written first: by it a reaper finds what
-- a script that stopped has left. One that lives already has its state among the further fields.
-- include: records.lua
call('HSETNX', REGISTRY, 'fleet', FLEET)
local fleet = call('HGET', REGISTRY, 'fleet')
local known = call('HMGET', box(NAME), 'fence', 'owner')
local fence = known[1]
if fence and known[2] ~= OWNER then return { '', fleet } end
keep(NAME, LEASE_US)
if not fence then
  fence = next_fence()
  if PERMITS_HELD ~= '' then call('HSET', PERMITS, NAME, PERMITS_HELD) end
  call('HSET', box(NAME), 'state', 'CREATING', 'owner', OWNER, 'fence', fence,
    'made', number(now), 'dies_at', number(now + DIES_AFTER_US), unpack(ARGV, REST))
  local provider = call('HGET', box(NAME), 'provider')
  if provider then call('HSET', REGISTRY, 'provider:' .. provider, number(now)) end
  count('opened')
end
return { fence, fleet }
