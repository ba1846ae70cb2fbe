-- weigh.lua: give shares of a queue their weights; a turn that is due comes by the new ones.
-- KEYS   jobs shares idle weights clock
-- ARGV   most(shares that may have a weight of their own) by(jobs, seconds, or '' as it is),
--        then for each: share('*' for those without a weight of their own) weight('' to forget it)
-- REPLY  1 | 0 there would be more: nothing has changed
local call = redis.call
-- include: next_share.lua
local before, more = {}, 0

local function note(share)
  if not shares().place_of(share) then return end
  local weight, step = shares().terms_of(share)
  before[share] = { weight = weight, step = step }
end

local function note_all() for _, share in ipairs(shares().first(0)) do note(share) end end

for share, weight in each() do
  if weight ~= '' and call('HEXISTS', WEIGHTS, share) == 0 then more = more + 1 end
  if share == '*' then note_all() else note(share) end
end
if more > 0 and call('HLEN', WEIGHTS) + more > tonumber(MOST) then return 0 end
for share, weight in each() do
  if weight == '' then call('HDEL', WEIGHTS, share) else call('HSET', WEIGHTS, share, weight) end
end
if BY ~= '' then
  note_all()
  if BY == 'seconds' then call('HSETNX', WEIGHTS, '~seconds', 1) else call('HDEL', WEIGHTS, '~seconds') end
end
shares().reweigh(before)
return 1
