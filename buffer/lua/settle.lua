-- settle.lua: what happened to the groups of a batch that are not delivered.
-- KEYS   root
-- ARGV   receipt, then for each group: gid verdict(invalid | quarantined | unasked) reason
-- REPLY  how many were settled; 0 when the batch is no longer leased
-- include: return_batch.lua
return whole(function()
  local batch = at('batch:' .. RECEIPT)
  if redis.call('HGET', batch, 'state') ~= 'leased' then return 0 end
  local settled = 0
  for gid, verdict, reason in each_group() do
    local meta = redis.call('HMGET', meta_of(gid), 'state', 'receipt')
    if meta[1] == 'leased' and meta[2] == RECEIPT then
      if verdict == 'unasked' then
        put_back(gid, RECEIPT)
      elseif verdict == 'invalid' then
        untake(gid)
        discard(gid, 'invalid', reason)
      else
        untake(gid)
        quarantine(gid, reason)
      end
      settled = settled + 1
    end
    redis.call('LREM', batch .. ':groups', 1, gid) -- the batch has it until it is elsewhere
  end
  if redis.call('EXISTS', at('ready')) == 1 then ring() end
  return settled
end)
