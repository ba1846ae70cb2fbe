-- claim.lua: take over what no living owner keeps, and only that.
-- KEYS   registry leases permits sessions office
-- ARGV   reaper lease_us most grace_us scope in_office_us('' for any caller),
--        then for each to_take(of any scope; without one, all that are due): name
-- REPLY  {now_us, us until the next is due or -1,
--         then for each claimed: name, score, {field, value, …}, permits}
--
-- in_office_us: nothing is claimed unless the reaper has held the office for so long. It is checked
-- here, since an outage between an election and a claim may have ended every lease.
-- The new fence refuses every renewal, and the lease gives way to the next reaper
-- should this one die on the way. From here on nobody asks the provider for this
-- sandbox any more: one that cannot be found by name a grace later was never made.
-- include: records.lua
local reply, due_names, all = { now, -1 }, {}, not ARGV[REST]
local held = call('HMGET', OFFICE, 'reaper', 'since')
if IN_OFFICE_US ~= '' and not (held[1] == REAPER and now - held[2] >= tonumber(IN_OFFICE_US)) then return reply end
-- What has outlived the life that its provider gives is anybody's. A lease without a record is what a
-- script that stopped has left, before anything was made.
local function in_scope(name)
  local known = call('HMGET', box(name), 'scope', 'dies_at', 'state')
  if not known[3] then
    drop(name)
    return false
  end
  return (known[1] or '') == SCOPE or (SCOPE == '' and tonumber(known[2] or 0) < now)
end
for _, name in ipairs(all and call('ZRANGEBYSCORE', LEASES, '-inf', now) or {}) do
  if #due_names < tonumber(MOST) and in_scope(name) then due_names[#due_names + 1] = name end
end
for name in each_to_take() do
  local lease = call('ZSCORE', LEASES, name)
  if lease and tonumber(lease) <= now and call('HGET', box(name), 'state') then due_names[#due_names + 1] = name end
end
for _, name in ipairs(due_names) do
  local state = call('HGET', box(name), 'state')
  if state ~= 'TERMINATING' then
    call('HSET', box(name), 'was', state)
    count('reaped')
  end
  call('HSETNX', box(name), 'gone_after', number(now + GRACE_US))
  call('HSET', box(name), 'state', 'TERMINATING', 'fence', next_fence(), 'owner', REAPER)
  call('ZADD', LEASES, number(now + LEASE_US), name)
  for _, part in ipairs(row_of(name, now + LEASE_US)) do reply[#reply + 1] = part end
end
local due = call('ZRANGEBYSCORE', LEASES, '(' .. number(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if due[2] then reply[2] = due[2] - now end
return reply
