-- full_verdict.lua: what a request gets at any gate. It may have a cost and a share.
local terms = steering and steering.terms or fields
if weighing then terms = { terms[1], terms[2], (terms[3] or '') .. weighing.amounts } end
local left = first_waiter() and 0 or weighing and math.huge or room() -- for requests that do not wait yet

-- Some may pass a first one that does not fit.
local function let_pass()
  if weighing then hand_over() end
end

local function score_of(id, record)
  return sharing and sharing.score_in(record) or tonumber(call('ZSCORE', QUEUE, id))
end

-- Returns its record as well, as far as it says on whose account it waits.
local function enter_line(id, score, term, cost, share, again)
  local spot = sharing and sharing.join(id, score, share, again)
  if not sharing then call('ZADD', QUEUE, score, id) end
  local begins = spot and spot ~= '' and spot .. '@' or ''
  if cost then term = term .. '|' .. cost end
  call('HSET', WAITERS, id, format('%s%s|%s|%d', begins, PROCESS, term, now))
  front, left = nil, 0
  return score, begins
end

-- `fence` is of a permit it has, `record` of its place in line. Returns two numbers as in the REPLY.
local function verdict(id, lane, known, term, fence, record)
  local cost, share
  if weighing then term, cost = weighing.split(term) end
  if sharing then lane, share = string.match(lane, '^(%S+) ?(.*)$') end
  local score = record and score_of(id, record)
  joined = joined or score
  if fence then
    call('ZADD', LEASES, now + term, id)
    return tonumber(fence), score or lane * LANE + gate.ticket
  end
  if not score and left > 0 and (not weighing or weighing.fits(cost)) then
    left = left - 1
    return grant(id, PROCESS, term, cost), lane * LANE + gate.ticket
  end
  if not score and not join then return 0, lane * LANE + gate.ticket end
  if not score then
    score, record = enter_line(id, place_for(lane, known), term, cost, share, known ~= '')
  end
  joined = true
  local before = sharing and sharing.rank(id, record) or call('ZRANK', QUEUE, id)
  return before and -1 - before or 0, score
end
