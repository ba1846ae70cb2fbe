-- open.lua: write down a sandbox before it is made, with the permits that it starts under.
-- KEYS   registry leases permits sessions
-- ARGV   name owner lease_us fleet permits(JSON, or '') dies_after_us,
--        then for each further field: field value
-- REPLY  {fence, fleet}; fence is '' where the record is not the caller's any more
--
-- Asking again with the same name is harmless.
-- include: records.lua
local name, owner = ARGV[1], ARGV[2]
call('HSETNX', REGISTRY, 'fleet', ARGV[4])
local fleet = call('HGET', REGISTRY, 'fleet')
local known = call('HMGET', box(name), 'fence', 'owner')
local fence = known[1]
if not fence then
  fence = next_fence()
  call('HSET', box(name), 'state', 'CREATING', 'owner', owner, 'fence', fence,
    'made', number(now), 'dies_at', number(now + ARGV[6]))
  if #ARGV > 6 then call('HSET', box(name), unpack(ARGV, 7)) end
  local provider = call('HGET', box(name), 'provider')
  if provider then call('HSET', REGISTRY, 'provider:' .. provider, number(now)) end
  if ARGV[5] ~= '' then call('HSET', PERMITS, name, ARGV[5]) end
  count('opened')
elseif known[2] ~= owner then
  return { '', fleet }
end
keep(name, ARGV[3])
return { fence, fleet }
