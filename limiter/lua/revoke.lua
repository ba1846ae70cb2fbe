-- revoke.lua: take one permit from its holder, and hand the room to the waiters.
-- KEYS   gate leases holders queue waiters alive
-- ARGV   limit rate burst process id
-- REPLY  {now_us, wake_us, grants, expiry_us, holder(fence|process|granted_us)}; '0' and '' if there
--         is no such permit
--
-- A living holder renews it once more, and `renew.lua` would count in what Redis does not know. So the
-- field `revoked` keeps each fence until its lease would have ended. Nobody renews it after that.
-- include: line.lua
local holder, ends = call('HGET', HOLDERS, ID) or '', call('ZSCORE', LEASES, ID) or '0'
if tonumber(ends) <= now then holder, ends = '', '0' end
if fence_in(holder) then
  local revoked = { format('%s:%.0f', fence_in(holder), tonumber(ends)) }
  for entry, last in string.gmatch(call('HGET', GATE, 'revoked') or '', '(%d+:(%d+))') do
    if tonumber(last) > now then revoked[#revoked + 1] = entry end
  end
  call('HSET', GATE, 'revoked', ' ' .. table.concat(revoked, ' '))
  free({ ID })
  count('expired', 1)
end
expire()
hand_over()
return { now, settle(), own, ends, holder }
