-- acquire.lua: a permit for each request while there is room and nobody waits; else a place in line.
-- KEYS   gate leases holders queue waiters alive
-- ARGV   limit rate burst process alive_us join(1|0, and 2 more if some have a cost, 4 if some have a share) how_many_released,
--        then for each released: id fence(and a report),
--        then for each request: id lane(and a share) score('' if new) term_us(and a cost)
-- REPLY  {now_us, wake_us, grants, made_us, limit, rate, burst,
--         then for each request: fence score | -place score | 0 score (not joined)}
--
-- Asking again with the same id is harmless, in whatever order the copies arrive: a holder's
-- lease is renewed, a waiter keeps its place, and one that was lost or dropped rejoins with the
-- score it had. The score of a permit granted at once is that of the last who came before it.
local how = tonumber(JOIN)
if how % 4 > 1 then redis.call('HSET', GATE, 'more', 1, 'weighs', 1) end
if how > 3 then redis.call('HSET', GATE, 'more', 1, 'shares', 1) end
-- include: line.lua

-- A place behind all of the lane; or the one that the request had.
local function enter_line(id, lane, score, term, cost, share)
  local begins, spot, again = '', nil, score ~= ''
  if not again then
    gate.ticket = gate.ticket + 1
    score = lane * LANE + gate.ticket
  else
    gate.ticket = math.max(gate.ticket, score % LANE)
  end
  if gate.sharing then spot = gate.sharing.join(id, tonumber(score), share, again) else call('ZADD', QUEUE, score, id) end
  if spot and spot ~= '' then begins = spot .. '@' end
  if cost then term = term .. '|' .. cost end
  call('HSET', WAITERS, id, format('%s%s|%s|%.0f', begins, PROCESS, term, now))
  front = nil
  return tonumber(score), begins
end

local join, weighing, sharing = how % 2 == 1, gate.weighing, gate.sharing
release(each_released())
expire()
hand_over()
local ids = {}
for id in each_request() do ids[#ids + 1] = id end
local held = gate.live > 0 and call('HMGET', HOLDERS, unpack(ids)) or {}
local waits = first_waiter() and call('HMGET', WAITERS, unpack(ids)) or {}
local terms = steering and steering.terms or fields
local reply, joined, left, n = { now, 0, own, gate.made, terms[1], terms[2], terms[3] }, false, room(), 0
if weighing then reply[7] = (terms[3] or '') .. weighing.amounts end
if first_waiter() then left = 0 elseif weighing then left = math.huge end
for id, lane, known, term in each_request() do
  n = n + 1
  local cost, share
  if weighing then term, cost = weighing.split(term) end
  if sharing then lane, share = string.match(lane, '^(%S+) ?(.*)$') end
  local fence, score, record = fence_in(held[n]), waits[n], waits[n]
  if score then score = sharing and sharing.score_in(score) or tonumber(call('ZSCORE', QUEUE, id)) end
  if fence then
    call('ZADD', LEASES, now + term, id)
  elseif not score and left > 0 and (not weighing or weighing.fits(cost)) then
    fence, left = grant(id, PROCESS, term, cost), left - 1
  elseif not score and join then
    score, record = enter_line(id, lane, known, term, cost, share)
    left = 0
  end
  joined = joined or score
  local before = score and (sharing and sharing.rank(id, record) or call('ZRANK', QUEUE, id))
  reply[#reply + 1] = tonumber(fence) or before and -1 - before or 0
  reply[#reply + 1] = score or lane * LANE + gate.ticket
end
if joined and weighing then -- some may pass a first one that does not fit
  hand_over()
  reply[3] = own
end
if joined then
  lives[PROCESS] = now + ALIVE_US
  call('ZADD', ALIVE, lives[PROCESS], PROCESS)
end
reply[2] = settle()
if not join then reply[2] = next_change() end -- a try is in no line
return reply
