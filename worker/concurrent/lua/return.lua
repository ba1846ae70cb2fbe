-- return.lua: give executions back unfinished, and empty the hand, to the front of the queue.
-- KEYS   jobs hand wip work running worker executions workers
-- ARGV   name leaving(1|0), then for each: id execution hold_us
-- REPLY  {executions returned, ids that were in the hand}
--
-- The last first, since each goes to the front of the queue.
-- include: clock.lua or gated.lua
-- include: putting_back.lua
-- include: worker.queue:feed_shares.lua
local returned = 0
for id, execution, hold_us in each() do
  local member = id .. ':' .. execution
  if call('ZSCORE', RUNNING, member) then
    if field(id, 'penstock_execution') == execution then
      returned = returned + put_back(id)
    end
    free_permit(member, hold_us .. ' -') -- if gated
    forget(id, execution)
  end
end
rest(WORKER, EXECUTIONS)
local in_hand = empty_hand(HAND)
feed_shares()
if LEAVING == '1' then call('ZREM', WORKERS, NAME) end
tally('returned', returned)
pass_on() -- if gated
return { returned, in_hand }
