-- show_shares.lua: the shares of a queue that have jobs, or a weight of their own.
-- KEYS   jobs shares idle weights clock
-- ARGV   most(shares with jobs to show, in the order of their turns)
-- REPLY  {weight of those without one of their own, mean seconds of a job or '' if it is charged 1,
--         shares with jobs,
--         {share, jobs that wait, its weight or ''} each}
local call = redis.call
-- include: next_share.lua
local terms = call('HMGET', WEIGHTS, '*', '~seconds')
local reply, shown = { terms[1] or '1', terms[2] or '', shares().waiting() }, { ['*'] = true, ['~seconds'] = true }

local function show(share)
  if shown[share] then return end
  shown[share] = true
  reply[#reply + 1] = { share, call('LLEN', list_of(share)), call('HGET', WEIGHTS, share) or '' }
end

for _, share in ipairs(shares().first(tonumber(MOST))) do show(share) end
local weighed = call('HKEYS', WEIGHTS)
table.sort(weighed)
for _, share in ipairs(weighed) do show(share) end
return reply
