-- drop.lua: an execution that ends in RQ's own way: its lease, its permit, and its notice.
-- KEYS   jobs wip work running worker executions
-- ARGV   id execution reply_to status('' if it is to run again: then there is no notice)
--        program(how its program ended, in a word, or '') started_s waited_s('' if unknown)
--        hold_us(and a report)
-- REPLY  1 | 0 its lease was not this worker's any more
--
-- It goes in the transaction in which RQ writes the end.
-- include: ungated.lua or gated.lua
-- include: records.lua
-- include: worker.queue:next_share.lua
-- include: counts.lua
-- include: with_breaker.lua if with_breaker
local function drop()
  local key, member = job_key(ID), ID .. ':' .. EXECUTION
  -- The latest asker; of a job that RQ has just deleted, the one that asked at its claim.
  local job = try('HMGET', key, 'penstock_reply_to', 'penstock_execution', 'penstock_charged', 'penstock_share')
  local reply_to = job[1] or REPLY_TO
  if not call('ZSCORE', RUNNING, member) then return 0 end
  -- From here on the reaper does not run it again; the lease is the last to go.
  if job[2] == EXECUTION then
    if tonumber(job[3]) then shares().settle(job[4] or '', tonumber(job[3]), now / 1000000 - STARTED_S) end
    call('HDEL', key, 'penstock_execution')
    call('HSET', key, 'penstock_ended', EXECUTION, 'penstock_outcome', (word_of(PROGRAM)))
    if STATUS ~= '' then call('HDEL', key, 'penstock_deaths', 'penstock_died') end
  end
  -- Its status says so now; a later requeue means that it is wanted again.
  if STATUS == 'stopped' and call('HGET', key, 'penstock_unwanted') == 'cancelled' then
    call('HDEL', key, 'penstock_unwanted')
  end
  if STATUS ~= '' and reply_to ~= '' then
    try('XADD', reply_to, 'MAXLEN', '~', 10000, '*', 'job', ID, 'status', STATUS)
    call('EXPIRE', reply_to, 3600)
  end
  add(totals, STATUS == '' and 'retried' or STATUS, 1)
  if STATUS == 'finished' then count_job(PROGRAM, STARTED_S, WAITED_S) end
  -- RQ's transaction writes the end, so it is not put off. What was stopped, or is to run again, says nothing.
  hear(STATUS == 'finished' and PROGRAM or '', STARTED_S, member) -- if with_breaker
  write_counts()
  free_permit(member, HOLD_US)
  forget(ID, EXECUTION)
  rest(WORKER, EXECUTIONS)
  return 1
end

local dropped = drop()
obey() -- if with_breaker
pass_on() -- if gated
return dropped
