-- look.lua: the registry as it is, for people and metrics.
-- KEYS   registry leases permits sessions
-- ARGV   most
-- REPLY  {now_us, how many there are, {field, value, …} of the registry,
--         then for each, the next to be due first: name, score, {field, value, …}, permits}
-- include: records.lua
local reply = { now, call('ZCARD', LEASES), call('HGETALL', REGISTRY) }
local rows = call('ZRANGE', LEASES, 0, ARGV[1] - 1, 'WITHSCORES')
for i = 1, #rows, 2 do
  reply[#reply + 1] = rows[i]
  reply[#reply + 1] = rows[i + 1]
  reply[#reply + 1] = call('HGETALL', box(rows[i]))
  reply[#reply + 1] = call('HGET', PERMITS, rows[i]) or ''
end
return reply
