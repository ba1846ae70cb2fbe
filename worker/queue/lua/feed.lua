-- feed.lua: move the shares' next jobs to their queue's list, for RQ's own workers.
-- KEYS   jobs
-- ARGV   (none)
-- REPLY  jobs in that list
local call = redis.call
-- include: feed_shares.lua
feed_shares()
return call('LLEN', JOBS)
