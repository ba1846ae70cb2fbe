-- revoke.lua: take one permit from its holder, and hand the room to the waiters.
-- KEYS   gate leases holders queue waiters alive
-- ARGV   limit rate burst process id call
-- REPLY  {now_us, wake_us, grants, expiry_us, holder(fence|process|granted_us, `|+` if it was given back and stays)}; '0' and '' if there
--         is no such permit
--
-- A living holder renews it once more, and `renew.lua` would count in what Redis does not know. So the
-- field `revoked` keeps each fence until its lease would have ended. Nobody renews it after that. It
-- also keeps whose permit that was, by the call: one whose reply was lost comes again, and has the
-- same answer.
-- include: line.lua
local holder, ends = call('HGET', HOLDERS, ID) or '', call('ZSCORE', LEASES, ID) or '0'
if tonumber(ends) <= now then holder, ends = '', '0' end
local before = call('HGET', GATE, 'revoked') or ''
if fence_in(holder) then
  local revoked = { format('%s:%d|%s%s', fence_in(holder), tonumber(ends), CALL, string.match(holder, '|.*$')) }
  for entry, last in string.gmatch(before, '(%d+:(%d+)%S*)') do
    if tonumber(last) > now then revoked[#revoked + 1] = entry end
  end
  call('HSET', GATE, 'revoked', ' ' .. table.concat(revoked, ' '))
  free({ ID })
  count('expired', 1)
else
  for fence, last, by_call, by in string.gmatch(before, '(%d+):(%d+)|([^|%s]+)(%S+)') do
    if by_call == CALL then holder, ends = fence .. by, last end
  end
end
expire()
hand_over()
return { now, settle(), own, ends, holder }
