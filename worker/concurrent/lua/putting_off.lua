-- putting_off.lua: a program without an outcome, while the breaker is open, is to run again.
-- include: worker.queue:feed_shares.lua
local put_off_any = false

local function put_off(id, execution, hold_us)
-- include: putting_back.lua

  -- Behind all others: those that are let through next are other jobs, so none can keep the breaker open.
  local function to_back()
    local share = field(id, 'penstock_share') or ''
    if share == '' or not shares().admit(share) then return call('RPUSH', JOBS, id) end
    shares().again(id, share)
    shares().refund(share, field(id, 'penstock_charged'))
  end

  put_back(id, to_back)
  free_permit(id .. ':' .. execution, hold_us) -- if gated
  forget(id, execution)
  tally('put_off', 1)
  put_off_any = true
  return 3
end
