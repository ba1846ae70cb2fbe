-- try.lua: a call on a key that is one job's own. It may be of another type than ours, by somebody's
-- hand: that is an answer about this job, not an error for all. Any other refusal says nothing of the
-- job, and stops the script.
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err and not string.find(tostring(reply.err), 'WRONGTYPE', 1, true) then
    error(redis.REDIS_VERSION and reply or reply.err, 0) -- Redis 6 raises texts, and fails on a table
  end
  return reply
end
