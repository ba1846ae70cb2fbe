-- shares.lua: who is next among the shares of a gate's line, lane by lane.
-- include: state.lua
--
-- A waiter without a share waits in `queue`, as all did before: they are the share ''. One with a share
-- waits in `order` alone, whose members `0512|alice|0000000000042|<id>` sort by lane, share and ticket.
-- In `waiters` its record begins with that, up to the id, and an `@`.
--
-- In a lane where shares wait, each has a place in `shares:<lane>`: the virtual time at which its
-- next permit is due. A permit granted moves that by cost/weight, and the lowest place goes next. The
-- clock of a lane (`clock:<lane>` in the hash) is the place served last. A share that comes begins one
-- permit behind it. One that waits no more, and was served ahead of the clock, is kept in
-- `idle:<lane>`. Weight 0: its place is behind all others. If nobody waits, nobody owes anything.
local LANE = 8796093022208 -- 2^43 tickets to a lane
gate.sharing = false -- false: one line for all

local found = fields[14] and call('HMGET', GATE, 'shares', 'lanes')

-- A function of its own: its functions find there what they use, which costs less than in the script's.
if found and found[1] then (function()
  local ORDER, WEIGHTS = GATE .. ':order', GATE .. ':weights'
  local MOST = 10000 -- shares that wait in a lane; weights of their own
  local BEHIND = 2 ^ 50 -- places of shares with weight 0 begin here
  local FAR = 2 ^ 36 -- a clock that comes so far begins at 0 again, and all places with it
  local ENTRY = gate.weighing and gate.weighing.price() or 1 -- a permit of cost 1
  local s, lanes, weights = {}, {}, {}
  gate.sharing = s
  local here, turn -- the first lane and whose turn it is; nil if that may have changed

  local function exactly(place) return format('%.17g', place) end -- Lua's own has 14 digits
  local function in_time(place) return place < BEHIND and place or place - BEHIND end

  -- Its weight, and by how much a cost of 1 moves its place.
  local function terms_of(share)
    if not weights[share] then
      local kept = call('HMGET', WEIGHTS, share, '*')
      weights[share] = tonumber(kept[1] or kept[2] or 1)
    end
    local weight = weights[share]
    return weight, 1 / (weight > 0 and weight or 1)
  end

  local function lane_at(n)
    if not lanes[n] then
      local name = format('%d', n)
      lanes[n] = {
        n = n, name = name, prefix = format('%04d|', n + 512),
        places = GATE .. ':shares:' .. name, idle = GATE .. ':idle:' .. name,
        clock = tonumber(call('HGET', GATE, 'clock:' .. name) or 0),
      }
    end
    return lanes[n]
  end

  local function place_of(lane, share) return tonumber(call('ZSCORE', lane.places, share) or nil) end
  local function set_place(lane, share, place) call('ZADD', lane.places, exactly(place), share) end
  local function has_places(lane) return call('EXISTS', lane.places) == 1 end

  local function named_lanes()
    local all = {}
    for name in string.gmatch(found[2] or '', '%S+') do all[#all + 1] = tonumber(name) end
    table.sort(all)
    return all
  end

  -- The place of its next permit, for a share that was served until `own`.
  local function due(share, own)
    local weight, step = terms_of(share)
    return own + ENTRY * step + (weight > 0 and 0 or BEHIND)
  end

  local function enter(lane, share)
    if not string.find(' ' .. (found[2] or '') .. ' ', ' ' .. lane.name .. ' ', 1, true) then
      found[2] = (found[2] and found[2] .. ' ' or '') .. lane.name
      call('HSET', GATE, 'lanes', found[2])
    end
    local own = tonumber(call('ZSCORE', lane.idle, share) or 0)
    call('ZREM', lane.idle, share)
    set_place(lane, share, due(share, math.max(own, lane.clock)))
  end

  local function forget(lane)
    lane.clock, lane.moved = 0, false
    call('DEL', lane.places, lane.idle)
    call('HDEL', GATE, 'clock:' .. lane.name)
  end

  -- Nobody of it waits any more.
  local function go_idle(lane, share)
    local place = place_of(lane, share)
    if not place then return end
    call('ZREM', lane.places, share)
    if not has_places(lane) then
      here = nil
      return forget(lane)
    end
    local _, step = terms_of(share)
    local own = in_time(place) - ENTRY * step
    if own > lane.clock then
      call('ZREMRANGEBYSCORE', lane.idle, '-inf', exactly(lane.clock))
      call('ZADD', lane.idle, exactly(own), share)
    end
  end

  local function start_again(lane)
    for _, key in ipairs({ lane.places, lane.idle }) do
      local all = call('ZRANGE', key, 0, -1, 'WITHSCORES')
      for i = 1, #all, 2 do
        local place = tonumber(all[i + 1])
        local moved = place - lane.clock
        call('ZADD', key, exactly(place < BEHIND and moved or math.max(BEHIND, moved)), all[i])
      end
    end
    lane.clock = 0
  end

  -- What `order` has of a waiter before its id, from its record; nil of one without a share.
  local function spot_in(record) return record and string.match(record, '^(%d%d%d%d|[^|@]+|%d+|)@') end
  local function lane_in(spot) return lane_at(tonumber(string.sub(spot, 1, 4)) - 512) end
  local function share_in(spot) return string.sub(spot, 6, -16) end
  local function ticket_in(spot) return tonumber(string.sub(spot, -14, -2)) end

  function s.share_in(record)
    local spot = spot_in(record)
    return spot and share_in(spot) or ''
  end

  -- The record without its beginning.
  function s.plain(record) return spot_in(record) and string.match(record, '@(.*)$') or record end

  -- A lane and a share, as they are sent.
  function s.split(lane) return string.match(lane, '^(%S+) ?(.*)$') end

  local function named(lane, share, most)
    local first, ids = lane.prefix .. share .. '|', {}
    local members = call('ZRANGEBYLEX', ORDER, '[' .. first, '[' .. first .. '~', 'LIMIT', 0, most)
    for n, member in ipairs(members) do ids[n] = string.sub(member, #first + 15) end
    return ids
  end

  local function unnamed(lane, most)
    return call('ZRANGEBYSCORE', QUEUE, format('%.0f', lane.n * LANE), format('(%.0f', (lane.n + 1) * LANE),
      'LIMIT', 0, most)
  end

  local function ids_of(lane, share, most)
    if share == '' then return unnamed(lane, most) end
    return named(lane, share, most)
  end

  -- The first lane in which somebody waits; `by_turns`: shares have places in it.
  local function first_lane()
    local head, first = call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES'), call('ZRANGE', ORDER, 0, 0)[1]
    if not head[1] and not first then
      for _, n in ipairs(found[2] and named_lanes() or {}) do forget(lane_at(n)) end
      if found[2] then call('HDEL', GATE, 'lanes') end
      found[2] = false
      return nil
    end
    local plain = head[1] and math.floor(head[2] / LANE) or 512
    local shared = first and tonumber(string.sub(first, 1, 4)) - 512 or 512
    local lane = lane_at(math.min(plain, shared))
    lane.by_turns = shared == lane.n or has_places(lane)
    if plain ~= lane.n then
      go_idle(lane, '')
    elseif lane.by_turns and not place_of(lane, '') then
      enter(lane, '')
    end
    return lane
  end

  -- Its place, its first waiter, and how many may go before another's turn.
  local function whose_turn()
    while turn == nil do
      here = here or first_lane()
      local lane = here
      if not lane then
        turn = false
      elseif not lane.by_turns then
        turn = { lane = lane, share = '', first = unnamed(lane, 1)[1], row = math.huge }
      else
        local two = call('ZRANGE', lane.places, 0, 1, 'WITHSCORES')
        local first = ids_of(lane, two[1], 1)[1]
        if first then
          local weight, step = terms_of(two[1])
          local row = two[3] and 1 or math.huge
          if two[3] and weight > 0 then row = math.max(1, math.ceil((two[4] - two[2]) / (ENTRY * step))) end
          turn = { lane = lane, share = two[1], place = tonumber(two[2]), first = first, row = row }
        else
          go_idle(lane, two[1])
        end
      end
    end
    return turn
  end

  function s.first()
    local next_one = whose_turn()
    return next_one and next_one.first
  end

  -- The ids of those who go next, all of one share.
  function s.next(most)
    local next_one = whose_turn()
    if not next_one then return {} end
    most = math.min(most, next_one.row)
    return most == 1 and { next_one.first } or ids_of(next_one.lane, next_one.share, most)
  end

  -- So many of the first lane who may go next: `head` if it still waits there, then each share's first.
  function s.candidates(head, most)
    local next_one = whose_turn()
    if not next_one then return {} end
    local lane, ids = next_one.lane, {}
    local shares = lane.by_turns and call('ZRANGE', lane.places, 0, most - 1) or { '' }
    if head ~= '' then
      local spot = spot_in(call('HGET', WAITERS, head))
      local score = not spot and call('ZSCORE', QUEUE, head)
      if spot and lane_in(spot) == lane or score and math.floor(score / LANE) == lane.n then ids[1] = head end
    end
    for _, share in ipairs(shares) do
      for _, id in ipairs(ids_of(lane, share, math.floor(most / #shares))) do
        if id ~= head then ids[#ids + 1] = id end
      end
    end
    return ids
  end

  -- Permits of the first lane were granted to a share; they cost `paid`, the last of them `last`.
  function s.served(share, paid, last)
    local lane, place = turn.lane, turn.share == share and turn.place
    if not lane.by_turns then return end
    place = place or place_of(lane, share)
    local _, step = terms_of(share)
    local at = in_time(place) + (paid - last) * step
    if at > lane.clock then lane.clock, lane.moved = at, true end
    set_place(lane, share, place + paid * step)
    if lane.clock > FAR then start_again(lane) end
    turn = nil
  end

  -- A permit has cost less or more than its share was charged.
  function s.settle(receipt)
    local n, share, said, was = string.match(receipt, '|(.-)|(.-)|(.-)|(.*)$')
    if not n then return end
    local lane, more = lane_at(tonumber(n)), gate.weighing.price(was) - gate.weighing.price(said)
    local place, own = place_of(lane, share), call('ZSCORE', lane.idle, share)
    local _, step = terms_of(share)
    if place then
      set_place(lane, share, math.max(place + more * step, place < BEHIND and -BEHIND or BEHIND))
    elseif has_places(lane) and (own or more > 0) then -- else nobody waits, and nothing is owed
      call('ZADD', lane.idle, exactly(math.max(tonumber(own or 0), lane.clock) + more * step), share)
    end
    turn = nil
  end

  -- It waits from now on, perhaps `again`; returns what its record begins with.
  function s.join(id, score, share, again)
    local lane = lane_at(math.floor(score / LANE))
    local waits = share ~= '' and place_of(lane, share)
    if again then turn = nil end
    if not waits then here, turn = nil, nil end
    if share == '' or not waits and call('ZCARD', lane.places) >= MOST then
      call('ZADD', QUEUE, format('%.0f', score), id)
      return ''
    end
    local spot = format('%s%s|%013.0f|', lane.prefix, share, score % LANE)
    call('ZADD', ORDER, 0, spot .. id)
    if not waits then enter(lane, share) end
    return spot .. '@'
  end

  function s.leave(ids, records)
    local plain, spots, shares = {}, {}, {}
    for n, record in ipairs(records or call('HMGET', WAITERS, unpack(ids))) do
      local spot = spot_in(record)
      if spot then
        spots[#spots + 1] = spot .. ids[n]
        shares[string.sub(spot, 1, -15)] = spot
      else
        plain[#plain + 1] = ids[n]
      end
    end
    if #plain > 0 then
      here = nil
      call('ZREM', QUEUE, unpack(plain))
    end
    if #spots > 0 then call('ZREM', ORDER, unpack(spots)) end
    for _, spot in pairs(shares) do
      local lane, share = lane_in(spot), share_in(spot)
      if not named(lane, share, 1)[1] then go_idle(lane, share) end
    end
    turn = nil
  end

  -- The score and the place in its share's line of one with a share, by its record.
  function s.score_in(record)
    local spot = spot_in(record)
    return spot and lane_in(spot).n * LANE + ticket_in(spot)
  end

  function s.rank(id, record)
    local spot = spot_in(record or call('HGET', WAITERS, id))
    if not spot then return nil end
    return call('ZLEXCOUNT', ORDER, '[' .. string.sub(spot, 1, -15), '(' .. spot .. id)
  end

  -- New weights ('' forgets one). A turn that was due by old ones comes by the new ones. Changes
  -- nothing and returns false if there would be too many.
  function s.reweigh(changes)
    local more, before = 0, {}
    for _, change in ipairs(changes) do
      local share, weight = change[1], change[2]
      local kept = call('HEXISTS', WEIGHTS, share)
      more = more + (weight == '' and -kept or 1 - kept)
    end
    if more > 0 and call('HLEN', WEIGHTS) + more > MOST then return false end
    for _, n in ipairs(named_lanes()) do
      local lane = lane_at(n)
      for _, share in ipairs(call('ZRANGE', lane.places, 0, -1)) do
        local weight, step = terms_of(share)
        before[#before + 1] = { lane, share, weight, step }
      end
    end
    for _, change in ipairs(changes) do
      if change[2] == '' then call('HDEL', WEIGHTS, change[1]) else call('HSET', WEIGHTS, change[1], change[2]) end
    end
    weights, turn = {}, nil
    for _, old in ipairs(before) do
      local lane, share = old[1], old[2]
      local weight, step = terms_of(share)
      if weight ~= old[3] or step ~= old[4] then
        local own = in_time(place_of(lane, share)) - ENTRY * old[4]
        set_place(lane, share, due(share, math.max(own, lane.clock)))
      end
    end
    return true
  end

  function s.waiting() return call('ZCARD', ORDER) end

  -- The weight of all without one of their own; how many shares have places; then each of the first
  -- `most` by turns, and of those with a weight: its name, how many wait, its own weight or ''.
  function s.show(most)
    whose_turn()
    local places, listed, counts, all = 0, {}, {}, call('HGETALL', WEIGHTS)
    local function list(share, waiting)
      if not counts[share] then listed[#listed + 1] = share end
      counts[share] = (counts[share] or 0) + waiting
    end
    for _, n in ipairs(named_lanes()) do
      local lane = lane_at(n)
      places = places + call('ZCARD', lane.places)
      for _, share in ipairs(call('ZRANGE', lane.places, 0, most - 1)) do
        if share ~= '' then
          local first = lane.prefix .. share .. '|'
          list(share, call('ZLEXCOUNT', ORDER, '[' .. first, '[' .. first .. '~'))
        else
          list('', 0)
        end
      end
    end
    local plain = call('ZCARD', QUEUE)
    if plain > 0 then list('', plain) end
    local own, others = {}, '1'
    for i = 1, #all, 2 do own[all[i]] = all[i + 1] end
    others, own['*'] = own['*'] or others, nil
    local weighed = {}
    for share in pairs(own) do weighed[#weighed + 1] = share end
    table.sort(weighed)
    for n = 1, math.min(#weighed, most) do list(weighed[n], 0) end
    local reply = { others, places }
    for n, share in ipairs(listed) do reply[n + 2] = { share, counts[share], own[share] or '' } end
    return reply
  end

  function s.save(write)
    for _, lane in pairs(lanes) do
      if lane.moved then write('clock:' .. lane.name, exactly(lane.clock)) end
    end
  end
end)() end
