-- claim.lua: take over what nobody keeps any more, and only that.
-- KEYS   registry leases permits sessions
-- ARGV   reaper lease_us most grace_us, then the only ones to take, if not all that are due
-- REPLY  {now_us, us until the next is due or -1,
--         then for each claimed: name, score, {field, value, …}, permits}
--
-- The new fence refuses every renewal, and the lease gives way to the next reaper
-- should this one die on the way. From here on nobody asks the provider for this
-- sandbox any more: one that cannot be found by name a grace later was never made.
-- include: records.lua
local reply, due_names = { now, -1 }, {}
if #ARGV == 4 then due_names = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, ARGV[3]) end
for i = 5, #ARGV do
  local lease = call('ZSCORE', LEASES, ARGV[i])
  if lease and tonumber(lease) <= now then due_names[#due_names + 1] = ARGV[i] end
end
for _, name in ipairs(due_names) do
  local state = call('HGET', box(name), 'state')
  local permits = call('HGET', PERMITS, name) or ''
  if state and state ~= 'TERMINATING' then
    call('HSET', box(name), 'was', state)
    count('reaped')
  end
  call('HSETNX', box(name), 'gone_after', number(now + ARGV[4]))
  call('HSET', box(name), 'state', 'TERMINATING', 'fence', next_fence(), 'owner', ARGV[1])
  call('ZADD', LEASES, number(now + ARGV[2]), name)
  local row = { name, number(now + ARGV[2]), call('HGETALL', box(name)), permits }
  for _, part in ipairs(row) do reply[#reply + 1] = part end
end
local due = call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
if due[2] then reply[2] = math.max(0, due[2] - now) end
return reply
