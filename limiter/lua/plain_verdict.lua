-- plain_verdict.lua: what a request gets at a gate where each permit costs one and nobody has a share.
local terms = fields
local left = first_waiter() and 0 or room() -- permits for requests that do not wait yet

local function enter_line(id, score, term)
  call('ZADD', QUEUE, score, id)
  call('HSET', WAITERS, id, format('%s|%s|%d', PROCESS, term, now))
  front, left = nil, 0
  return score
end

-- `fence` is of a permit it has, `record` of its place in line. Returns two numbers as in the REPLY.
local function verdict(id, lane, known, term, fence, record)
  local score = record and tonumber(call('ZSCORE', QUEUE, id))
  joined = joined or score
  if fence then
    call('ZADD', LEASES, now + term, id)
    return tonumber(fence), score or lane * LANE + gate.ticket
  end
  if not score and left > 0 then
    left = left - 1
    return grant(id, PROCESS, term), lane * LANE + gate.ticket
  end
  if not score and not join then return 0, lane * LANE + gate.ticket end
  score = score or enter_line(id, place_for(lane, known), term)
  joined = true
  return -1 - call('ZRANK', QUEUE, id), score
end
