-- putting_back.lua: what was taken from a queue, at its front again. It needs the key jobs.
-- include: records.lua
-- include: worker.queue:shares.lua

-- In front of its share's list, but behind jobs that came back and were enqueued earlier.
local function to_front(id)
  local share = field(id, 'penstock_share') or ''
  local list = shares.list_of(share)
  local mine, after = field(id, 'enqueued_at') or '', nil
  local other = call('LINDEX', list, 0)
  local at = 0
  while other do
    local its = try('HMGET', job_key(other), 'penstock_returned', 'enqueued_at')
    if not its[1] or (its[2] or '') >= mine then break end
    at, after = at + 1, other
    other = call('LINDEX', list, at)
  end
  if after then call('LINSERT', list, 'AFTER', after, id) else call('LPUSH', list, id) end
  if share ~= '' then shares.refund(share, field(id, 'penstock_charged')) end
  if call('EXISTS', job_key(id)) == 1 then try('HSET', job_key(id), 'penstock_returned', 1) end
end

local function empty_hand(hand)
  local ids = call('LRANGE', hand, 0, -1)
  for i = #ids, 1, -1 do to_front(ids[i]) end
  if #ids > 0 then call('DEL', hand) end
  return #ids
end

-- Undo an execution, as if the job had not been claimed.
local function put_back(id)
  local key = job_key(id)
  call('HSET', key, 'status', 'queued', 'penstock_execution', '')
  local ttl = whole(field(id, 'ttl')) or 0
  if ttl > 0 then call('EXPIRE', key, ttl) end
  to_front(id)
end
