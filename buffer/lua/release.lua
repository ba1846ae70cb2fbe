-- release.lua: a batch is given back before its lease ends. Repeating it changes nothing.
-- KEYS   root
-- ARGV   receipt
-- REPLY  1 when given back now or by a call before, 2 when a part is: repeat it; 0 when it was not leased
-- include: return_batch.lua
return whole(function()
  local batch = at('batch:' .. RECEIPT)
  local had = redis.call('HMGET', batch, 'state', 'released')
  if had[1] == 'leased' then
    redis.call('HSET', batch, 'state', 'returning', 'released', 1)
  elseif not had[2] then
    return 0
  end
  if had[1] == 'returned' then return 1 end
  local _, more = give_back(RECEIPT, BATCH_STEP)
  return more and 2 or 1
end)
