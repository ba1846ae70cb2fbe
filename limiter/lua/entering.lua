-- entering.lua: a place in line for who finds no room, behind all of its lane or where it was.
local LANE = 8796093022208 -- 2^43 tickets to a lane

local function enter_line(id, lane, score, term)
  if score == '' then
    gate.ticket = gate.ticket + 1
    score = lane * LANE + gate.ticket
  else
    gate.ticket = math.max(gate.ticket, score % LANE)
  end
  call('ZADD', QUEUE, score, id)
  call('HSET', WAITERS, id, format('%s|%s|%.0f', PROCESS, term, now))
  front = nil
  return tonumber(score)
end
