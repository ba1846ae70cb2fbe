-- session.lua: the session of an instance: use it, wait while another caller opens it, or open it.
-- KEYS   registry leases permits sessions
-- ARGV   instance name owner lease_us
-- REPLY  {'ready', name, fence, {field, value, …} of its record}
--        | {'wait', name, us until its opener's lease ends} | {'open', the caller's name, fence}
--
-- A session that has idled for too long is its reaper's, whether claimed already or not.
-- include: records.lua
local name = call('HGET', SESSIONS, INSTANCE)
if name and name ~= NAME then
  local known = call('HMGET', box(name), 'state', 'fence')
  local left = tonumber(call('ZSCORE', LEASES, name) or 0) - now
  if known[1] == 'READY' and left > 0 then
    keep(name, LEASE_US)
    return { 'ready', name, known[2], call('HGETALL', box(name)) }
  elseif known[1] == 'WAITING' and left > 0 then
    return { 'wait', name, left }
  end
end
name = NAME
local fence = call('HGET', box(name), 'fence') or next_fence()
keep(name, LEASE_US) -- first: by it a reaper finds what a script that stopped has left
call('HSET', box(name), 'state', 'WAITING', 'owner', OWNER, 'fence', fence,
  'made', number(now), 'instance', INSTANCE)
call('HSET', SESSIONS, INSTANCE, name)
return { 'open', name, fence }
