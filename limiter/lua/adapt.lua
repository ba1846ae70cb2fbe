-- adapt.lua: a gate that finds its limit, or its rate, from what its holders report.
-- include: state.lua
--
-- A report follows a released permit's fence: nothing for a success, `-` for no report, `o` for an
-- overload, `t<us>` for a refusal with its Retry-After. The step is made in the script that gets
-- the report. `mark` is the newest fence at the last cut: a permit granted before that says nothing
-- about the limit since. So there is one cut per generation of permits, in the whole cluster.
--
-- The limit rises by adding and falls by multiplying. `exact` is the limit with its fraction, `ceiling` what
-- it was at the last cut:
--
--   cut         exact ← 0.95 exact: at a refusal, or when overloads are 5 % of a limit's worth of permits.
--               A refusal says as well that the service took what is still in flight, and no more:
--               exact ← min(exact, in flight) before the cut, unless that is below half of it.
--   raise       after a round of as many successes as the limit, without an overload, if 80 % of it were used:
--     slow start  no cut yet              exact + exact / 2
--     returning   below 0.95 ceiling      half of the way to the ceiling, at least 1
--     linear      from there on           1, 2, 4, … more, at most a tenth
--   held        the tenth cut in a row whose refusal names a Retry-After: nothing is granted until then, 30 s
--               at most, and the limit goes on at 0.95 of what it was before those ten.
local steering, read_steering = false, nil -- false: the limit stands as it was set

if more and more[1] then
  local CUT, ROUND, BUSY, NEAR, RUN, HOLD_US = 0.95, 4, 0.8, 0.95, 10, 30000000
  local NUMBERS = { 'min', 'max', 'exact', 'mark', 'ceiling', 'run', 'run_from', 'clean', 'overloads', 'peak',
    'probe', 'hold_until', 'noted' }

  local function state_of(s)
    if s.hold_until > now then return 'held' end
    if s.ceiling == 0 then return 'slow start' end
    return s.exact < NEAR * s.ceiling and 'returning' or 'linear'
  end

  -- By how much a served round raises the limit, and `probe` afterwards. A held gate grants nothing, so it
  -- has no round.
  local RAISES = {
    ['slow start'] = function(s) return s.exact / 2, s.probe end,
    returning = function(s) return math.max(1, (s.ceiling - s.exact) / 2), s.probe end,
    linear = function(s)
      local probe = math.max(1, s.probe)
      return math.min(probe, math.max(1, s.exact / 10)), 2 * probe
    end,
    held = function(s) return 0, s.probe end,
  }

  -- The functions below are pure. Each returns what changes in `s`; `notes` and `counts` are for operators.

  local function bounded(s, exact) return math.max(s.min, math.min(s.max, exact)) end

  -- `exact` is the limit that was too high, `before` the one before this report.
  local function cut(s, exact, before, report, why)
    local run = s.run + 1
    local run_from = s.run == 0 and before or s.run_from
    local to = bounded(s, CUT * exact)
    local next = {
      exact = to, ceiling = exact, probe = 1, mark = report.newest, run = run, run_from = run_from,
      clean = 0, overloads = 0, peak = 0, notes = { { to, why } }, counts = { cuts = 1 },
    }
    if run >= RUN and report.retry_us and state_of(s) ~= 'held' then
      local us = math.min(report.retry_us, HOLD_US)
      next.exact, next.hold_until, next.run = bounded(s, CUT * run_from), now + us, 0
      next.notes[2], next.counts.held_us = { next.exact, 'held' }, us
    end
    return next
  end

  local function throttled(s, report)
    local took = report.adapts == 'limit' and report.left >= s.exact / 2
    local exact = took and bounded(s, math.min(s.exact, report.left)) or s.exact
    if report.fence > s.mark then return cut(s, exact, s.exact, report, 'throttled') end
    return { exact = exact, notes = exact <= BUSY * s.noted and { { exact, 'throttled' } } or nil }
  end

  -- One of a permit from before the last cut comes late, and is about a limit that was left.
  local function overloaded(s, report)
    if report.fence <= s.mark then return {} end
    local overloads = s.overloads + report.units
    if overloads >= 0.05 * math.max(s.exact, ROUND) then return cut(s, s.exact, s.exact, report, 'overloaded') end
    return { overloads = overloads }
  end

  local function succeeded(s, report)
    if report.fence <= s.mark then return {} end
    local next = { run = 0, clean = s.clean + report.units, peak = math.max(s.peak, report.busy()) }
    if next.clean < math.max(math.floor(s.exact), ROUND) then return next end
    if next.peak >= BUSY * math.floor(s.exact) and s.overloads == 0 then
      local up, probe = RAISES[state_of(s)](s)
      next.exact, next.probe = bounded(s, s.exact + up), probe
      next.notes = { { next.exact, 'served' } }
      next.counts = { raises = next.exact > s.exact and 1 or 0 }
    end
    next.clean, next.overloads, next.peak = 0, 0, 0
    return next
  end

  local NEXT = { [''] = succeeded, t = throttled, o = overloaded }
  local COUNTED = { t = 'throttled', o = 'overloaded' }

  function read_steering()
    local found = call('HMGET', GATE, 'adapts', 'limit', 'rate', 'start', unpack(NUMBERS))
    local adapts, heard = found[1] or '', {}
    steering = false
    if adapts == '' then return end
    local s = {}
    for n, name in ipairs(NUMBERS) do s[name] = tonumber(found[n + 4]) or 0 end
    local bounds = table.concat({ found[4], found[5], found[6] }, ' ')
    s.terms = adapts == 'limit' and { bounds, found[3], fields[3] } or { found[2], bounds, '' }

    -- Kept for operators: when, from, to, why.
    function s.note(to, why)
      if s.noted == to then return end
      call('XADD', GATE .. ':changes', 'MAXLEN', 200, '*', 'at', now,
        'from', format('%.6g', s.noted), 'to', format('%.6g', to), 'why', why)
      s.noted = to
    end

    -- The only place that changes the steering, and the gate by it.
    local function apply(next)
      for name, value in pairs(next) do
        if name ~= 'notes' and name ~= 'counts' then s[name] = value end
      end
      if adapts == 'limit' then
        gate.limit = math.floor(s.exact)
      else
        gate.rate, gate.burst = s.exact, math.max(1, math.ceil(s.exact / 10))
        gate.tokens = math.min(gate.tokens, gate.burst)
      end
      if s.hold_until > now and not gate.held then
        gate.paused, gate.held = true, gate.paused and -1 or s.hold_until - now
      end
      for what, by in pairs(next.counts or {}) do count(what, by) end
      for _, note in ipairs(next.notes or {}) do s.note(note[1], note[2]) end
    end

    -- Of a permit that counts as so many.
    function s.hear(fence, word, units) heard[#heard + 1] = { tonumber(fence), word, units or 1 } end

    -- What was heard in this call, in its order. `gate.live` counts none of them any more.
    function s.step()
      local left = gate.live
      for _, report in ipairs(heard) do left = left + report[3] end
      for _, report in ipairs(heard) do
        local fence, text, units = report[1], report[2], report[3]
        local word, still = string.sub(text, 1, 1), left - units
        left = still
        local function busy()
          if adapts == 'limit' then return still + units end
          return (gate.tokens < 1 or call('ZCARD', QUEUE) > 0) and s.exact or 0
        end
        if COUNTED[word] then count(COUNTED[word], 1) end
        if NEXT[word] then
          apply(NEXT[word](s, {
            adapts = adapts, fence = fence, units = units, left = still, busy = busy,
            newest = tonumber(gate.fence), retry_us = tonumber(string.match(text, '^t(%d+)')),
          }))
        end
      end
      if #heard > 0 then s.changed, heard = true, {} end
    end

    -- Into its bounds, which may have changed.
    function s.settle_in(why)
      local exact = bounded(s, s.exact)
      apply({ exact = exact, notes = { { exact, why } } })
      s.changed = true
    end

    function s.save(write)
      if not s.changed then return end
      for _, name in ipairs(NUMBERS) do write(name, format('%.17g', s[name])) end
      local stands = adapts == 'limit' and format('%.0f', gate.limit) or format('%.17g', gate.rate)
      write('shown', stands)
      write(adapts, stands)
      if adapts == 'rate' then write('burst', gate.burst) end
    end

    if s.noted == 0 then s.noted = s.exact end
    apply({})
    steering = s
  end

  read_steering()
end
