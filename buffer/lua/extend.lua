-- extend.lua: a lease is extended; or a batch was handed out in full, to be consumed at its end.
-- KEYS   root
-- ARGV   receipt lease_ms handed
-- REPLY  1, or 0 when the batch is no longer leased
-- include: task.lua
local batch = at('batch:' .. RECEIPT)
if redis.call('HGET', batch, 'state') ~= 'leased' then return 0 end
-- A full Redis refuses a script's first write if it needs memory, and none after one that does not.
-- So this begins with one that never needs any: a renewal must not fail then.
redis.call('ZREMRANGEBYSCORE', at('leases'), '-inf', '-inf')
if HANDED == '1' then redis.call('HSET', batch, 'handed', 1) end
if LEASE_MS ~= '0' then
  local ends = now + LEASE_MS
  redis.call('HSET', batch, 'since', now, 'until', ends)
  redis.call('ZADD', at('leases'), ends, RECEIPT)
end
return 1
