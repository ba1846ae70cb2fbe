-- weigh.lua: permits that cost more than one, and amounts that a gate earns beside its rate.
-- include: state.lua
--
-- A cost is the units that a permit takes of the limit and of the rate, then what it takes of each
-- amount: `3 tokens=900`. A waiter's is in its record. `:costs` has the units of each permit that has
-- more than one, and `extra` in the hash is their sum beyond one each: so `gate.live` counts units. Both
-- have the units in full. Only where a cost is compared with the limit it counts as the limit at most.
--
-- `:costs` and `extra` cannot be written in one command. So `torn` is set before the first of them is, and
-- cleared with the last: a script that finds it set was preceded by one that stopped, and counts again.
gate.weighing = false -- false: each permit costs one

if more and more[2] then
  local COSTS, LOOKED, PASSING = GATE .. ':costs', 100, 4
  local found = call('HMGET', GATE, 'extra', 'torn', 'passed', 'passed_by', 'amounts_refilled')
  local w = { extra = tonumber(found[1]) or 0, full = false, wait = nil }
  local passed, passed_by = tonumber(found[3]) or 0, found[4] or ''
  local passing, buckets, known = PASSING, {}, {}
  gate.weighing = w

  -- The rate is a bucket, and each amount is one; `gate` itself is that of the rate.
  function w.read_terms()
    local terms = call('HMGET', GATE, 'passing', 'amounts')
    passing, buckets, w.amounts = tonumber(terms[1]) or PASSING, { gate }, ''
    for name in string.gmatch(terms[2] or '', '%S+') do
      local bucket = known[name] or { name = name, tokens = 0 }
      local set = call('HMGET', GATE, 'rate:' .. name, 'burst:' .. name)
      bucket.rate, bucket.burst = tonumber(set[1]), tonumber(set[2])
      if not (bucket.rate and bucket.burst) then -- no number, by somebody's hand: it lets nobody in
        gate.limit, bucket.rate, bucket.burst = 0, 0, 0
      end
      bucket.tokens = math.min(bucket.tokens, bucket.burst)
      buckets[#buckets + 1], known[name] = bucket, bucket
      w.amounts = format('%s %s=%s/%s', w.amounts, name, set[1] or '', set[2] or '')
    end
  end

  local function earn()
    local passed_us = math.max(0, now - (found[5] or gate.made))
    for n = 2, #buckets do
      local b = buckets[n]
      local stands = tonumber(call('HGET', GATE, 'tokens:' .. b.name)) or 0
      b.tokens = math.min(b.burst, stands + passed_us * b.rate / 1000000)
    end
  end

  -- What a cost takes of the limit as it is, and of each bucket.
  local function takes(cost)
    cost = cost or '1'
    local units = tonumber(string.match(cost, '^%d+'))
    local t = { units = math.max(1, math.min(units, gate.limit)), [gate] = units } -- the limit is 0 if it is no number
    for n = 2, #buckets do
      local b = buckets[n]
      t[b] = tonumber(string.match(cost, ' ' .. b.name .. '=(%d+)')) or 1
    end
    return t
  end

  -- Microseconds until each bucket has what that needs; 0 if they do.
  local function earned_in(t)
    local longest = 0
    for _, b in ipairs(buckets) do
      local lacks = b.rate > 0 and math.min(t[b], b.burst) - b.tokens or 0
      if lacks > 0 then longest = math.max(longest, math.ceil(lacks * 1000000 / b.rate)) end
    end
    return longest
  end

  -- What keeps a cost out: the limit, the time until it is earned, or nothing. It is noted for those
  -- who ask when to look again.
  local function obstacle(t)
    if gate.live + t.units > gate.limit then
      w.full = true
      return 'limit'
    end
    local wait = earned_in(t)
    if wait == 0 then return nil end
    w.wait = math.min(w.wait or wait, wait)
    return 'time'
  end

  -- How many permits that name no cost the amounts are enough for.
  function w.earned()
    local least = math.huge
    for n = 2, #buckets do
      local b = buckets[n]
      if b.rate > 0 then least = math.min(least, math.max(0, math.floor(b.tokens))) end
    end
    return least
  end

  -- Such a permit was given up unused.
  function w.refund()
    for n = 2, #buckets do
      local b = buckets[n]
      if b.rate > 0 then b.tokens = math.min(b.burst, b.tokens + 1) end
    end
  end

  -- A term, and the cost behind it if there is one.
  function w.split(term)
    local us, cost = string.match(term, '^(%d+) (.+)$')
    return us or term, cost
  end

  function w.fits(cost) return not gate.paused and not obstacle(takes(cost)) end

  -- What it takes of the limit as it is, and in full.
  function w.units(cost)
    local t = takes(cost)
    return t.units, t[gate]
  end

  -- What a share is charged for it: the units; with several amounts, by how much longer than a cost of 1
  -- it takes to earn.
  function w.price(cost)
    local t, seconds, least = takes(cost), 0, 0
    if #buckets == 1 then return t.units end
    for _, b in ipairs(buckets) do
      if b.rate > 0 then seconds, least = math.max(seconds, t[b] / b.rate), math.max(least, 1 / b.rate) end
    end
    return seconds / least
  end

  -- The first write needs no memory: a full Redis refuses none that comes after such a one.
  local function begin_change()
    if w.changing then return end
    call('ZREMRANGEBYSCORE', ALIVE, '-inf', '-inf')
    call('HSET', GATE, 'torn', 1)
    w.changing = true
  end

  -- A permit that counts as one takes so many units.
  function w.hold(id, units)
    if units > 1 then begin_change() end
    if units > 1 and call('HSETNX', COSTS, id, units) == 1 then
      w.extra, gate.live = w.extra + units - 1, gate.live + units - 1
    end
  end

  function w.held(id) return tonumber(call('HGET', COSTS, id) or 1) end

  -- A permit is granted, and one was taken of the rate.
  function w.charge(id, cost)
    local t = takes(cost)
    w.hold(id, t[gate])
    if gate.rate > 0 then gate.tokens = gate.tokens + 1 end
    for _, b in ipairs(buckets) do
      if b.rate > 0 then b.tokens = b.tokens - t[b] end
    end
  end

  -- Permits that end. `expire` counts those in flight afterwards.
  function w.uncharge(ids)
    if w.extra == 0 or #ids == 0 then return end
    for _, units in ipairs(call('HMGET', COSTS, unpack(ids))) do
      if units then w.extra = w.extra - units + 1 end
    end
    call('HDEL', COSTS, unpack(ids))
  end

  -- Before permits end that may have cost more than one.
  function w.begin_end()
    if w.extra ~= 0 then begin_change() end
  end

  -- A permit has cost less or more than was taken: `requests=-20 tokens=311` is given back.
  function w.settle(receipt)
    for name, back in string.gmatch(string.match(receipt, '^[^|]*'), '([%w_]+)=(-?%d+)') do
      local b = name == 'requests' and gate or known[name]
      if b and b.rate > 0 then b.tokens = math.min(b.burst, b.tokens + back) end
    end
  end

  -- Who goes next, one at a time: the first in line, or a dead one. Others pass a first one that the
  -- limit keeps out until they have taken `passing` times its units. Then it waits alone. None passes
  -- somebody who waits for time: what it takes would be missed there. With shares `candidates` says
  -- who may go, and is asked again after each.
  --
  -- `passed` of `passed_by` is kept in the hash, so all calls of all processes pass one first waiter by
  -- `passing * its units` together. At most LOOKED waiters that do not fit are looked at in a call.
  function w.walk(read_waiter, alive, candidates)
    local ids, records, n = {}, {}, 0 -- of the line from `skipped` on, and how many of them were looked at
    local skipped, first, budget = 0, nil, 0 -- who is passed, and by how many units more
    w.full, w.wait = false, nil

    return function()
      if gate.paused then return {} end
      if gate.live >= gate.limit then
        w.full = true
        return {}
      end
      if candidates then ids, n, skipped, first, budget = {}, 0, 0, nil, 0 end
      while skipped < LOOKED and (not first or budget > 0) do
        n = n + 1
        if not ids[n] then
          if candidates and n > 1 then break end
          ids, n = candidates and candidates(passed_by, LOOKED) or call('ZRANGE', QUEUE, skipped, skipped + 49), 1
          if not ids[1] then break end
          records = call('HMGET', WAITERS, unpack(ids))
        end
        local id, process, _, cost = ids[n], read_waiter(records[n])
        if not process or not alive(process) then return { id } end
        local t = takes(cost)
        local why = obstacle(t)
        if why == 'time' then break end
        if not why and not first then return { id } end
        if not why and t.units <= budget then
          passed, budget = passed + t.units, budget - t.units
          return { id }
        end
        if not first then
          first = id
          if passed_by ~= id then passed, passed_by = 0, id end
          budget = passing * t.units - passed
        end
        skipped = skipped + 1
      end
      return {}
    end
  end

  function w.save(write)
    write('extra', w.extra)
    if w.changing then write('torn', '') end
    write('passed', passed) write('passed_by', passed_by)
    if #buckets > 1 then write('amounts_refilled', now) end
    for n = 2, #buckets do write('tokens:' .. buckets[n].name, format('%.17g', buckets[n].tokens)) end
  end

  local function recount()
    begin_change()
    local all = call('HGETALL', COSTS)
    w.extra = 0
    for i = 1, #all, 2 do
      if call('ZSCORE', LEASES, all[i]) then
        w.extra = w.extra + all[i + 1] - 1
      else
        call('HDEL', COSTS, all[i])
      end
    end
  end

  w.read_terms()
  earn()
  if found[2] == '1' then recount() end
end
