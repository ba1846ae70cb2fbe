-- breaker.lua: what a breaker has paused, after too many ends for which nobody but us is to blame.
-- It needs `now`, and is kept as one text, in the field `paused` of a gate or a queue:
--   open <until> <opened> <out> <good>    nothing goes through until then
--   half <until> <opened> <out> <good>    a few have gone through, `out` of them are not back; until then
-- '1' in that field is a pause by hand, which a breaker leaves alone. `ground/breaker.py` has the states and
-- their table; `worker/concurrent/lua/with_breaker.lua` opens it. Each change is written with the script's own changes, so a script that stops leaves a state
-- that is older, never one that is half. Those that died are forgotten as the round ends.
-- Most scripts meet no breaker: all of it is made when it is first used.
local function breakers()
  local FEW, PAUSE, ROUND = 3, 5000000, 10000000

  local function stand(state, til, opened, out, good)
    local b = {}

    -- How many may go through now.
    function b.room()
      if now >= til then return FEW end
      return state == 'half' and math.max(0, FEW - out) or 0
    end

    -- Microseconds until time lets others through.
    function b.wait() return math.max(0, til - now) end

    function b.let_through(many)
      if many == 0 then return end
      if now >= til then state, til, out = 'half', now + ROUND, 0 end
      out, b.changed = out + many, true
    end

    -- What began before the breaker opened is late news, and was not let through.
    local function is_news(began) return state == 'half' and began >= opened end

    -- One is back, and says nothing of us.
    function b.back(began)
      if not is_news(began) then return end
      out, b.changed = math.max(0, out - 1), true
      b.closed = b.closed or (good > 0 and out == 0)
    end

    -- An end that is not our fault, of one that is still out, or was counted back before.
    function b.succeed(began, is_out)
      if not is_news(began) then return end
      if is_out then out = math.max(0, out - 1) end
      good, b.changed = good + 1, true
      b.closed = b.closed or good >= FEW or out == 0
    end

    -- An end that is.
    function b.fail(began)
      if not is_news(began) then return end
      state, til, out, good, b.changed = 'open', now + PAUSE, 0, 0, true
    end

    function b.text() return string.format('%s %d %d %d %d', state, til, opened, out, good) end

    return b
  end

  -- Nil of what nobody has paused, or somebody by hand.
  local function read_breaker(text)
    local state, til, opened, out, good = string.match(text or '', '^(%a+) (%d+) (%d+) (%d+) (%d+)$')
    return state and stand(state, tonumber(til), tonumber(opened), tonumber(out), tonumber(good))
  end

  local function open_breaker()
    local b = stand('open', now + PAUSE, now, 0, 0)
    b.changed = true
    return b
  end

  return { read = read_breaker, open = open_breaker }
end
