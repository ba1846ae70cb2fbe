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
-- include: marks.lua if full
-- include: line.lua
-- include: fenced_release.lua
local join = JOIN % 2 == 1
release(each_released())
expire()
hand_over()
local ids = {}
for id in each_request() do ids[#ids + 1] = id end
local held = gate.live > 0 and call('HMGET', HOLDERS, unpack(ids)) or {}
local waits = first_waiter() and call('HMGET', WAITERS, unpack(ids)) or {}
local joined = false -- whether one of these is in line

-- A place behind all of the lane; or the one that the request had.
local function place_for(lane, known)
  if known == '' then
    gate.ticket = gate.ticket + 1
    return lane * LANE + gate.ticket
  end
  gate.ticket = math.max(gate.ticket, known % LANE)
  return tonumber(known)
end

-- include: plain_verdict.lua or full_verdict.lua if full
local reply, n = { now, 0, '', gate.made, terms[1], terms[2], terms[3] }, 0
for id, lane, known, term in each_request() do
  n = n + 1
  reply[6 + 2 * n], reply[7 + 2 * n] = verdict(id, lane, known, term, fence_in(held[n]), waits[n])
end
if joined then
  let_pass() -- if full
  lives[PROCESS] = now + ALIVE_US
  call('ZADD', ALIVE, lives[PROCESS], PROCESS)
end
reply[2], reply[3] = settle(), own
if not join then reply[2] = next_change() end -- a try is in no line
return reply
