-- ack.lua: the trainer has the batch; its groups are consumed (group_life.lua). Repeating it changes nothing.
-- KEYS   root
-- ARGV   receipt
-- REPLY  1 when consumed now or before, 2 when a part is: repeat it; 0 when the lease had ended or was never given
-- include: group_life.lua
return whole(function()
  local state = redis.call('HGET', at('batch:' .. RECEIPT), 'state')
  if state == 'leased' or state == 'consuming' then
    local _, more = consume(RECEIPT, BATCH_STEP)
    return more and 2 or 1
  end
  return state == 'consumed' and 1 or 0
end)
