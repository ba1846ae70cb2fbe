-- release.lua: a batch is given back before its lease ends.
-- KEYS   root
-- ARGV   receipt
-- REPLY  1 when given back, 0 when it was not leased
-- include: give_back.lua
return whole(function()
  if redis.call('HGET', at('batch:' .. RECEIPT), 'state') ~= 'leased' then return 0 end
  give_back(RECEIPT)
  return 1
end)
