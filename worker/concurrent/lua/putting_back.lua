-- putting_back.lua: what was taken from a queue, at its front again. It needs the key jobs.
-- include: records.lua
-- include: worker.queue:next_share.lua

-- In front of its share's list, but behind jobs that came back and were enqueued earlier. Those stand
-- in their order, so this looks at few of them: at twice as many each time, then by halves.
local function to_front(id)
  local share = field(id, 'penstock_share') or ''
  if share ~= '' and type(try('LINDEX', list_of(share), 0)) == 'table' then share = '' end -- a key of another type
  local list = list_of(share)
  local mine = field(id, 'enqueued_at') or ''
  local function goes_before(at)
    local other = call('LINDEX', list, at)
    local its = other and try('HMGET', job_key(other), 'penstock_returned', 'enqueued_at') or {}
    return its[1] and (its[2] or '') < mine
  end
  local last, at = -1, 0 -- the last that is known to go before it, and one that does not
  while goes_before(at) do last, at = at, 2 * at + 1 end
  while at - last > 1 do
    local half = math.floor((last + at) / 2)
    if goes_before(half) then last = half else at = half end
  end
  local after = last >= 0 and call('LINDEX', list, last)
  if after then call('LINSERT', list, 'AFTER', after, id) else call('LPUSH', list, id) end
  if share ~= '' then shares().refund(share, field(id, 'penstock_charged')) end
  if call('EXISTS', job_key(id)) == 1 then try('HSET', job_key(id), 'penstock_returned', 1) end
end

local function empty_hand(hand)
  local ids = call('LRANGE', hand, 0, -1)
  for i = #ids, 1, -1 do to_front(ids[i]) end
  if #ids > 0 then call('DEL', hand) end
  return #ids
end

-- Undo an execution, as if the job had not been claimed. `to_its_list` is at the front of it, by default.
-- Returns 1, or 0 if RQ has cancelled the job while it ran: it does not run again.
local function put_back(id, to_its_list)
  if field(id, 'status') == 'canceled' then return 0 end
  local key, list = job_key(id), to_its_list or to_front
  list(id) -- in its list first: until then its execution is known, and its lease
  call('HSET', key, 'status', 'queued', 'penstock_execution', '')
  local ttl = whole(field(id, 'ttl')) or 0
  if ttl > 0 then call('EXPIRE', key, ttl) else call('PERSIST', key) end -- of an end that was cut off
  return 1
end
