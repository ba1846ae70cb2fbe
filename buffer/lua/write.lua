-- write.lua: put items into their groups; what is full, late or known is answered, not stored.
-- KEYS   root
-- ARGV   rollout(digest or empty), then group by group id_json id round slot fence lowest highest n
--        and n items, each uid reward payload. Slot and fence are empty without a slot; lowest and
--        highest are the versions that the items report, or empty.
-- REPLY  {wait_ms, one code per item: 1 stored 2 repeated 3 late 4 surplus 5 full 6 lost(its slot
--        is over) 7 unpublished(of a version that no trainer published) 8 foreign(its slot makes
--        a group of another instance)}
-- include: store.lua
local i = REST
if ROLLOUT ~= '' and redis.call('HGET', at('rollout'), 'digest') ~= ROLLOUT then
  return redis.error_reply('STALE rollout')
end

return whole(function()
  wake()
  do_due(4)
  while i <= #ARGV do i = store(ARGV, i) end
  count_stored()
  table.insert(codes, 1, tally_of[5] > 0 and next_due() or 0)
  return codes
end)
