-- rejoin.lua: a job that RQ has enqueued for another run, from the queue's list to that of its share.
-- KEYS   jobs
-- ARGV   id
-- REPLY  1 it waits in its share | 0 it has none, or a worker has it already
local call = redis.call
-- include: feed_shares.lua
local share = call('HGET', 'rq:job:' .. ID, 'penstock_share')
if not share or not shares().admit(share) then return 0 end
shares().again(ID, share) -- in both lists, should the script stop here: it runs once all the same
if call('LREM', JOBS, -1, ID) == 0 then
  call('LREM', list_of(share), -1, ID)
  call('HDEL', 'rq:job:' .. ID, 'penstock_again')
  return 0
end
feed_shares()
return 1
