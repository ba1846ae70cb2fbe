-- claim.lua: take finished groups for a batch, oldest first, never two rounds of one instance.
-- Under a policy the oldest by version, and only those that it lets go (`may_take`).
-- KEYS   root
-- ARGV   receipt want lease_ms implicit bytes(that the batch may still have, as stored; 0: any number),
--        then for each owned(in the batch already): gid
-- REPLY  {next_due_ms, version(that of the whole batch; empty without a policy), oldest(tokens of older
--        versions are masked; empty if none are), then for each group: gid id_json why start(empty without a
--        policy) bytes(empty if any number may come)}; only the first three when the lease has ended, or the
--        batch is sealed
-- include: lease_group.lua
-- include: timeouts.lua
-- include: next_due.lua
-- include: ready_order.lua
local ends, owned = now + LEASE_MS, #ARGV - REST + 1
local batch = {receipt = RECEIPT, key = at('batch:' .. RECEIPT), want = tonumber(WANT),
  reply = {0, policy and tostring(policy.version) or '', ''}, has = {},
  room = BYTES ~= '0' and tonumber(BYTES)}
if policy and policy.when_old == 'mask' then
  batch.reply[3] = string.format('%d', policy.version - policy.max_age)
end
for gid in each_owned() do batch.has[instance_of(gid)] = true end

-- Once, before its first group.
function batch.lease()
  if batch.leased then return end
  batch.leased = true
  redis.call('ZADD', at('leases'), ends, RECEIPT)
  redis.call('HSET', batch.key, 'state', 'leased', 'since', now, 'until', ends)
  if policy then redis.call('HSET', batch.key, 'version', policy.version, 'oldest', batch.reply[3]) end
  -- When, and how often as a rule: so that a trainer that takes no more is seen.
  local had = redis.call('HMGET', at('state'), 'taken_at', 'taken_every')
  local since = had[1] and now - tonumber(had[1])
  local every = since and math.floor(((tonumber(had[2] or '') or since) + since) / 2) or ''
  redis.call('HSET', at('state'), 'taken_at', now, 'taken_every', every)
end

local function fill()
  -- What an earlier call took, but its reply was lost, is in this reply. A sealed batch gets no more: a copy of a
  -- call may come late.
  local told = redis.call('LRANGE', batch.key .. ':groups', owned, -1)
  local begun = owned > 0 or #told > 0
  local before = (policy or begun) and redis.call('HMGET', batch.key, 'state', 'version', 'oldest', 'figures')
  if begun and (before[1] ~= 'leased' or before[4]) then return end
  if IMPLICIT == '1' and owned == 0 then
    local left = BATCH_STEP
    for _, other in ipairs(redis.call('ZRANGE', at('leases'), 0, -1)) do
      local had = redis.call('HMGET', at('batch:' .. other), 'handed', 'state')
      if had[1] and had[2] == 'leased' then -- a new line of versions may have ended that
        left = left - consume(other, math.max(1, left))
      end
    end
  end
  for _, gid in ipairs(told) do tell(batch, gid, known(gid)) end
  if policy and before[2] and before[2] ~= batch.reply[2] and (owned > 0 or #batch.reply > 3) then
    batch.reply[2], batch.reply[3] = before[2], before[3]
    return -- a batch is of one version
  end
  local skipped, over, stale, full = 0, false, 0, false
  while batch.want > 0 and not over and not full do
    local page = offered(skipped, skipped == 0 and batch.want or 1000) -- it may have to pass by many rounds
    if #page == 0 then break end
    for _, gid in ipairs(page) do
      local meta = not batch.has[instance_of(gid)] and known(gid)
      if not meta then
        skipped = skipped + 1
      elseif meta.over then -- a script stopped before it took this from here
        if policy then leave_ready(gid) end
        redis.call('ZREM', at('ready'), gid)
      elseif policy and too_old(meta.start) then -- a publication has not come to it yet
        end_too_old(gid)
        stale = stale + 1
        if stale == 200 then return true end
      else
        over = policy and not may_go(meta.place)
        full = batch.room and (owned > 0 or #batch.reply > 3) and bytes_of(gid) > batch.room
        if over or full then break end
        take(batch, gid, ends, meta)
        if batch.want == 0 then break end
      end
    end
  end
  if #batch.reply > 3 then batch.lease() end
  if not over and redis.call('EXISTS', at('ready')) == 1 then ring() end
end

return whole(function()
  do_due(200)
  local more = fill()
  batch.reply[1] = more and #batch.reply == 3 and 0 or next_due()
  return batch.reply
end)
