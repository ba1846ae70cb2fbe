-- let_few_through.lua: a gate that a breaker has paused lets a few through, after a while.
-- include: state.lua
-- include: breaker.lua
--
-- Its hash has `more`, which is `breaker` if it needs the full form for nothing else. What follows is made for such
-- a gate alone; others have no `gate.broken`.
local function make_few_pass()
  local is_closed, free_room = false, room

  function room()
    return gate.broken and math.min(free_room(), gate.broken.room()) or free_room()
  end

  -- After each change of the breaker: whether it lets somebody through, and when.
  function gate.obey()
    local broken = gate.broken
    if broken and broken.closed then
      gate.broken, gate.paused, gate.held, is_closed = nil, false, nil, true
    elseif broken then
      gate.paused = broken.room() == 0
      gate.held = gate.paused and broken.wait() or nil
    end
  end

  function gate.let_through(many)
    gate.broken.let_through(many)
    gate.obey()
  end

  -- A permit came back, and nobody says what of. Its fence is the moment of its grant, or later.
  function gate.came_back(fence)
    gate.broken.back(tonumber(fence))
    gate.obey()
  end

  -- It is written before the text: those who see that text read why as well.
  function gate.trip(why)
    call('HSET', GATE, 'paused_why', why)
    call('HSETNX', GATE, 'more', 'breaker')
    gate.broken = breakers().open()
    gate.obey()
  end

  -- By hand: the breaker has nothing to say any more.
  function gate.overrule(paused)
    gate.broken, gate.paused, gate.held, is_closed = nil, paused, nil, not paused
    call('HDEL', GATE, 'paused_why')
  end

  function gate.save_breaker(set)
    if gate.broken and gate.broken.changed then set('paused', gate.broken.text()) end
    if not is_closed then return end
    set('paused', '0')
    call('HDEL', GATE, 'paused_why')
    if fields[14] == 'breaker' then call('HDEL', GATE, 'more') end
  end

  gate.broken = breakers().read(fields[4])
  gate.obey()
end
if gate.paused then make_few_pass() end
