-- turns.lua: whose turn it is among shares that wait, by virtual time. A lane of a gate is such a track, and so
-- is a queue: `{ places, idle, behind, clock, most }`. It needs `call`.
--
-- Who waits has a place in the sorted set `places`: the virtual time at which its next turn is due. A turn
-- moves that by its price divided by the share's weight (`step` for a price of 1), and the lowest place goes
-- next. `clock` is the place served last. A share that comes begins one step behind it, or behind where it
-- was served until: it is owed nothing for the time in which it did not wait. One that waits no more is kept in
-- `idle` while it was served ahead of the clock; who owes least is forgotten first. Weight 0 is served
-- when nobody else waits: such places begin at `behind`. When nobody waits, nobody owes anything.
--
-- Scripts that meet no shares pay for one function.
local function make_turns()
  local turns = {}

  function turns.place_of(track, share) return tonumber(call('ZSCORE', track.places, share) or nil) end

  -- A place, or where it would be if its weight were not 0.
  local function in_time(track, place) return place < track.behind and place or place - track.behind end

  -- Until where a share with this place was served.
  function turns.served_until(track, place, step) return in_time(track, place) - step end

  -- It waits, and was served until `own`, or as `idle` remembers.
  function turns.enter(track, share, weight, step, own)
    if not own then
      own = tonumber(call('ZSCORE', track.idle, share) or 0)
      call('ZREM', track.idle, share)
    end
    call('ZADD', track.places, math.max(own, track.clock) + step + (weight > 0 and 0 or track.behind), share)
  end

  local function keep_idle(track, share, own)
    call('ZREMRANGEBYSCORE', track.idle, '-inf', track.clock)
    call('ZADD', track.idle, own, share)
    call('ZREMRANGEBYRANK', track.idle, 0, -1 - track.most)
  end

  -- It waits no more; whether others do.
  function turns.leave(track, share)
    call('ZREM', track.places, share)
    if call('EXISTS', track.places) == 1 then return true end
    track.clock, track.moved = 0, false
    call('DEL', track.idle)
    return false
  end

  -- It was served until `own`, and waits no more.
  function turns.rest(track, share, own)
    if own > track.clock then keep_idle(track, share, own) end
  end

  -- How many turns the first share has before the one whose place is `after` is due, at most `most`.
  function turns.in_a_row(place, after, weight, step, most)
    if not after then return most end
    if weight == 0 then return 1 end
    return math.max(1, math.min(most, math.ceil((after - place) / step)))
  end

  -- A share at this place has had its turns, the last of them so much later; returns until where it was served.
  function turns.pass(track, place, later)
    local at = in_time(track, place) + later
    if at > track.clock then track.clock, track.moved = at, true end
    return at
  end

  -- Its turns have cost so much more, or less, than it was charged.
  function turns.charge(track, share, more)
    local place, own = turns.place_of(track, share), call('ZSCORE', track.idle, share)
    if place then
      call('ZADD', track.places, math.max(place + more, place < track.behind and -track.behind or track.behind), share)
    elseif call('EXISTS', track.places) == 1 and (own or more > 0) then -- else nobody waits, and nothing is owed
      keep_idle(track, share, math.max(tonumber(own or 0), track.clock) + more)
    end
  end
  return turns
end
