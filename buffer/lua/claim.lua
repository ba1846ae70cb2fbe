-- claim.lua: take finished groups for a batch, oldest first, never two rounds of one instance.
-- KEYS   root
-- ARGV   receipt want lease_ms implicit, then the gids the batch has already
-- REPLY  {next_due_ms, then for each group: gid id_json why}; nothing when the lease has ended
-- include: due.lua
local receipt, want = ARGV[1], tonumber(ARGV[2])
local batch, reply, has = at('batch:' .. receipt), {0}, {}
for i = 5, #ARGV do has[instance_of(ARGV[i])] = true end

local function tell(gid)
  has[instance_of(gid)] = true
  local meta = redis.call('HMGET', meta_of(gid), 'id', 'why')
  for _, said in ipairs({gid, meta[1], meta[2]}) do reply[#reply + 1] = said end
  want = want - 1
end

local function take(gid)
  redis.call('ZREM', at('ready'), gid)
  if redis.call('EXISTS', group_of(gid)) == 0 then
    count('vanished', 1)
    return discard(gid, 'expired')
  end
  redis.call('ZADD', at('leased'), now + ARGV[3], gid)
  redis.call('HSET', meta_of(gid), 'state', 'leased', 'closed', now, 'receipt', receipt)
  redis.call('RPUSH', batch .. ':groups', gid)
  tell(gid)
end

do_due(200)
if ARGV[4] == '1' and #ARGV == 4 then
  for _, other in ipairs(redis.call('ZRANGE', at('leases'), 0, -1)) do
    if redis.call('HGET', at('batch:' .. other), 'handed') then consume(other) end
  end
end
if #ARGV > 4 and redis.call('HGET', batch, 'state') ~= 'leased' then return reply end
-- What an earlier call took whose reply was lost is told again.
for _, gid in ipairs(redis.call('LRANGE', batch .. ':groups', #ARGV - 4, -1)) do tell(gid) end
local skipped = 0
while want > 0 do
  local page = redis.call('ZRANGE', at('ready'), skipped, skipped + want - 1)
  if #page == 0 then break end
  for _, gid in ipairs(page) do
    if has[instance_of(gid)] then skipped = skipped + 1 else take(gid) end
  end
end
if #reply > 1 then
  redis.call('HSET', batch, 'state', 'leased', 'until', now + ARGV[3])
  redis.call('ZADD', at('leases'), now + ARGV[3], receipt)
end
if redis.call('EXISTS', at('ready')) == 1 then ring() end
reply[1] = next_due()
return reply
