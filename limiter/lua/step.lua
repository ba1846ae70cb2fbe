-- step.lua: a gate that finds its limit, or its rate, from what its holders report.
-- include: state.lua
--
-- A report follows a released permit's fence: nothing for a success, `-` for no report, `o` for an
-- overload, `t<us>` for a refusal with its Retry-After. The step is made in the script that gets
-- the report. `mark` is the newest fence at the last cut: a permit granted before that says nothing
-- about the limit since. So there is one cut per generation of permits, in the whole cluster.
local steering, read_steering = false, nil -- false: the limit stands as it was set

if more and more[1] then
  local CUT, ROUND, BUSY, PROBE, RUN, HOLD_US = 0.95, 4, 0.8, 0.95, 10, 30000000
  local NUMBERS = { 'min', 'max', 'exact', 'mark', 'ceiling', 'run', 'run_from', 'clean', 'refused',
    'overloads', 'peak', 'probe', 'hold_until', 'noted' }

  function read_steering()
    local found = call('HMGET', GATE, 'adapts', 'shown', 'limit', 'rate', 'start', unpack(NUMBERS))
    local adapts, shown, heard = found[1] or '', found[2], {}
    steering = false
    if adapts == '' then return end
    local s = {}
    for n, name in ipairs(NUMBERS) do s[name] = tonumber(found[n + 5]) or 0 end
    local bounds = table.concat({ found[5], found[6], found[7] }, ' ')
    s.terms = adapts == 'limit' and { bounds, found[4], fields[3] } or { found[3], bounds, '' }

    -- Kept for operators: when, from, to, why.
    function s.note(to, why)
      if s.noted == to then return end
      call('XADD', GATE .. ':changes', 'MAXLEN', 200, '*', 'at', now,
        'from', format('%.6g', s.noted), 'to', format('%.6g', to), 'why', why)
      s.noted = to
    end

    local function apply()
      if adapts == 'limit' then
        gate.limit = math.floor(s.exact)
      else
        gate.rate, gate.burst = s.exact, math.max(1, math.ceil(s.exact / 10))
        gate.tokens = math.min(gate.tokens, gate.burst)
      end
    end

    local function set(exact)
      s.exact = math.max(s.min, math.min(s.max, exact))
      apply()
    end

    local function end_round() s.clean, s.refused, s.overloads, s.peak = 0, 0, 0, 0 end

    local function hold(hint)
      local us = math.min(hint, HOLD_US)
      s.hold_until, s.run = now + us, 0
      set(CUT * s.run_from)
      gate.paused, gate.held = true, us
      count('held_us', us)
      s.note(s.exact, 'held')
    end

    local function cut(why, hint)
      if s.run == 0 then s.run_from = s.before end
      s.ceiling, s.probe, s.mark, s.run = s.exact, 1, tonumber(gate.fence), s.run + 1
      set(CUT * s.exact)
      end_round()
      count('cuts', 1)
      s.note(s.exact, why)
      if s.run >= RUN and hint and not gate.held then hold(hint) end
    end

    -- The service took what is still in flight, unless that is far less than the limit anyway.
    local function throttled(fence, left, hint)
      s.before, s.refused = s.exact, s.refused + 1
      if adapts == 'limit' and left >= s.exact / 2 then set(math.min(s.exact, left)) end
      if fence > s.mark then cut('throttled', hint) elseif s.exact <= BUSY * s.noted then s.note(s.exact, 'throttled') end
    end

    -- One of a permit from before the last cut comes late, and is about a limit that was left.
    local function overloaded(fence, units)
      if fence <= s.mark then return end
      s.before, s.overloads = s.exact, s.overloads + units
      if s.overloads >= 0.05 * math.max(s.exact, ROUND) then cut('overloaded') end
    end

    local function raise()
      local up
      if s.ceiling == 0 then
        up = s.exact / 2
      elseif s.exact < PROBE * s.ceiling then
        up = math.max(1, (s.ceiling - s.exact) / 2)
      else
        up = math.min(math.max(1, s.probe), math.max(1, s.exact / 10))
        s.probe = 2 * math.max(1, s.probe)
      end
      local before = s.exact
      set(s.exact + up)
      if s.exact > before then count('raises', 1) end
      s.note(s.exact, 'served')
    end

    local function succeeded(fence, left, units)
      if fence <= s.mark then return end
      local busy = left + units
      if adapts == 'rate' then
        busy = (gate.tokens < 1 or call('ZCARD', QUEUE) > 0) and s.exact or 0
      end
      s.run, s.clean, s.peak = 0, s.clean + units, math.max(s.peak, busy)
      if s.clean < math.max(math.floor(s.exact), ROUND) then return end
      if s.peak >= BUSY * math.floor(s.exact) and s.overloads == 0 then raise() end
      end_round()
    end

    -- Of a permit that counts as so many.
    function s.hear(fence, word, units) heard[#heard + 1] = { tonumber(fence), word, units or 1 } end

    -- What was heard in this call, in its order. `gate.live` counts none of them any more.
    function s.step()
      local left = gate.live
      for _, report in ipairs(heard) do left = left + report[3] end
      for _, report in ipairs(heard) do
        local fence, word, units = report[1], string.sub(report[2], 1, 1), report[3]
        left = left - units
        if word == '' then
          succeeded(fence, left, units)
        elseif word == 't' then
          count('throttled', 1)
          throttled(fence, left, tonumber(string.match(report[2], '^t(%d+)')))
        elseif word == 'o' then
          count('overloaded', 1)
          overloaded(fence, units)
        end
      end
      if #heard > 0 then s.changed, heard = true, {} end
    end

    -- Into its bounds, which may have changed.
    function s.settle_in(why)
      set(s.exact)
      s.note(s.exact, why)
      s.changed = true
    end

    function s.save(write)
      if not s.changed then return end
      for _, name in ipairs(NUMBERS) do write(name, format('%.17g', s[name])) end
      s.shown = adapts == 'limit' and format('%.0f', gate.limit) or format('%.17g', gate.rate)
      write('shown', s.shown)
      write(adapts, s.shown)
      if adapts == 'rate' then write('burst', gate.burst) end
    end

    -- A client of an earlier release has set the limit: that pins it.
    local stands = adapts == 'limit' and found[3] or found[4]
    if shown ~= stands then
      s.note(tonumber(stands), 'pinned')
      call('HSET', GATE, 'adapts', '')
      return
    end
    if s.hold_until > now then gate.paused, gate.held = true, gate.paused and -1 or s.hold_until - now end
    if s.noted == 0 then s.noted = s.exact end
    apply()
    steering = s
  end

  read_steering()
end
