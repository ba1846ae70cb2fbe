-- look.lua: what has become of jobs.
-- KEYS   workers queue
-- ARGV   job ids
-- REPLY  {live workers of the queue, jobs waiting, then for each job: status or '', its last result or {}}
local call = redis.call
local live = 0
for _, worker in ipairs(call('SMEMBERS', KEYS[1])) do live = live + call('EXISTS', worker) end
local reply = { live, call('LLEN', KEYS[2]) }
for _, id in ipairs(ARGV) do
  local last = call('XREVRANGE', 'rq:results:' .. id, '+', '-', 'COUNT', 1)[1]
  reply[#reply + 1] = call('HGET', 'rq:job:' .. id, 'status') or ''
  reply[#reply + 1] = last and last[2] or {}
end
return reply
