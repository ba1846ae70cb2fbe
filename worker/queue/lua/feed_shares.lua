-- feed_shares.lua: the shares' next jobs lie in their queue's list, if it has shares.
-- include: next_share.lua
local function feed_shares()
  if call('EXISTS', 'penstock:work:{' .. string.sub(JOBS, 10) .. '}:shares') == 1 then shares().fill_front() end
end
