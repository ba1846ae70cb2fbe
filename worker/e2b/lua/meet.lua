-- meet.lua: a server's heartbeat: it says what its machine has, and learns which others live.
-- KEYS   fleet machines
-- ARGV   secret(the fleet's, unless it has one) id entry('' only to learn) lease_us
-- REPLY  {the fleet's secret, then for each machine that lives: id, entry}
local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local function number(value) return string.format('%d', value) end

call('HSETNX', FLEET, 'secret', SECRET)
if ENTRY ~= '' then
  call('ZADD', MACHINES, number(now + LEASE_US), ID) -- first: what is dead is found by it
  call('HSET', FLEET, 'machine:' .. ID, ENTRY)
end
for _, dead in ipairs(call('ZRANGEBYSCORE', MACHINES, '-inf', number(now))) do
  call('HDEL', FLEET, 'machine:' .. dead)
  call('ZREM', MACHINES, dead)
end
local reply = { call('HGET', FLEET, 'secret') }
for _, living in ipairs(call('ZRANGE', MACHINES, 0, -1)) do
  reply[#reply + 1] = living
  reply[#reply + 1] = call('HGET', FLEET, 'machine:' .. living) or '{}'
end
-- A fleet that nobody has served for a month is forgotten.
call('EXPIRE', FLEET, 2592000)
call('EXPIRE', MACHINES, 2592000)
return reply
