-- claim.lua: take over what nobody keeps any more, and only that.
-- KEYS   registry leases permits sessions office
-- ARGV   reaper lease_us most grace_us scope in_office_us('' whoever asks),
--        then the only ones to take, of any scope, if not all that are due
-- REPLY  {now_us, us until the next is due or -1,
--         then for each claimed: name, score, {field, value, …}, permits}
--
-- in_office_us: nothing is, unless the reaper holds the office and has for so long; here,
-- as the two of them may have an outage between them that has ended every lease.
-- The new fence refuses every renewal, and the lease gives way to the next reaper
-- should this one die on the way. From here on nobody asks the provider for this
-- sandbox any more: one that cannot be found by name a grace later was never made.
-- include: records.lua
local reply, due_names, scope = { now, -1 }, {}, ARGV[5]
local held = call('HMGET', KEYS[5], 'reaper', 'since')
if ARGV[6] ~= '' and not (held[1] == ARGV[1] and now - held[2] >= tonumber(ARGV[6])) then return reply end
-- What has outlived the life that its provider gives is anybody's.
local function in_scope(name)
  local known = call('HMGET', box(name), 'scope', 'dies_at')
  return (known[1] or '') == scope or (scope == '' and tonumber(known[2] or 0) < now)
end
for _, name in ipairs(#ARGV > 6 and {} or call('ZRANGEBYSCORE', LEASES, '-inf', now)) do
  if #due_names < tonumber(ARGV[3]) and in_scope(name) then due_names[#due_names + 1] = name end
end
for i = 7, #ARGV do
  local lease = call('ZSCORE', LEASES, ARGV[i])
  if lease and tonumber(lease) <= now then due_names[#due_names + 1] = ARGV[i] end
end
for _, name in ipairs(due_names) do
  local state = call('HGET', box(name), 'state')
  if state and state ~= 'TERMINATING' then
    call('HSET', box(name), 'was', state)
    count('reaped')
  end
  call('HSETNX', box(name), 'gone_after', number(now + ARGV[4]))
  call('HSET', box(name), 'state', 'TERMINATING', 'fence', next_fence(), 'owner', ARGV[1])
  call('ZADD', LEASES, number(now + ARGV[2]), name)
  for _, part in ipairs(row_of(name, now + ARGV[2])) do reply[#reply + 1] = part end
end
local due = call('ZRANGEBYSCORE', LEASES, '(' .. number(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if due[2] then reply[2] = due[2] - now end
return reply
