-- next_share.lua: who is next among the shares of a gate's line, lane by lane.
-- include: state.lua
-- include: turns.lua
--
-- A waiter without a share waits in `queue`, as all did before: they are the share ''. One with a share
-- waits in `order` alone, whose members `0512|alice|0000000000042|<id>` sort by lane, share and ticket.
-- In `waiters` its record begins with that, up to the id (its spot), and an `@`.
--
-- In a lane where shares wait, they go by turns (`turns.lua`): places are in `shares:<lane>`, those that rest
-- in `idle:<lane>`, and the lane's clock is `clock:<lane>` in the hash.
gate.sharing = false -- false: one line for all

-- A function of its own: its functions find there what they use, which costs less than in the script's.
if more and more[3] then (function()
  local turns = make_turns()
  local ORDER = GATE .. ':order'
  local MOST = 10000 -- shares that wait in a lane, or are remembered there
  local BEHIND = 2 ^ 46 -- places of shares with weight 0 begin here
  local FAR = 2 ^ 36 -- a clock that comes so far begins at 0 again, and all places with it
  local s = { lanes = more[4] or '', weights = {} } -- lanes that may have places, in order
  gate.sharing = s
  local lanes = {}
  local head, turn -- the first of `queue`, and whose turn it is; nil if that may have changed

  function s.lane_at(n)
    local lane = lanes[n]
    if not lane then
      local name = format('%d', n)
      local clock = more[5]
      if n ~= 0 then clock = call('HGET', GATE, 'clock:' .. name) end
      lane = {
        n = n, name = name, prefix = format('%04d|', n + 512), clock = tonumber(clock or 0),
        places = GATE .. ':shares:' .. name, idle = GATE .. ':idle:' .. name, behind = BEHIND, most = MOST,
      }
      lanes[n] = lane
    end
    return lane
  end

  -- Its weight, and by how much a cost of 1 moves its place.
  function s.terms_of(share)
    local weight = s.weights[share]
    if not weight then
      local kept = call('HMGET', GATE .. ':weights', share, '*')
      weight = tonumber(kept[1] or kept[2] or 1)
      s.weights[share] = weight
    end
    return weight, 1 / (weight > 0 and weight or 1)
  end

  s.place_of = turns.place_of

  -- Its next permit is due one permit behind `own`, until where it was served, or behind the clock.
  function s.enter(lane, share, own)
    if s.lanes ~= lane.name and not string.find(' ' .. s.lanes .. ' ', ' ' .. lane.name .. ' ', 1, true) then
      local all = { lane.n }
      for name in string.gmatch(s.lanes, '%S+') do all[#all + 1] = tonumber(name) end
      table.sort(all)
      s.lanes = table.concat(all, ' ')
      call('HSET', GATE, 'lanes', s.lanes)
    end
    local weight, step = s.terms_of(share)
    turns.enter(lane, share, weight, step, own)
    turn = nil
  end

  s.own = turns.served_until

  -- Nobody of it waits any more.
  local function go_idle(lane, share)
    local place = turns.place_of(lane, share)
    if not place then return end
    local _, step = s.terms_of(share)
    if turns.leave(lane, share) then
      turns.rest(lane, share, turns.served_until(lane, place, step))
    else
      call('HDEL', GATE, 'clock:' .. lane.name)
    end
  end

  local function ids_of(lane, share, most)
    if share == '' then
      return call('ZRANGEBYSCORE', QUEUE, lane.n * LANE, format('(%.0f', (lane.n + 1) * LANE), 'LIMIT', 0, most)
    end
    local first = lane.prefix .. share .. '|'
    local ids = call('ZRANGEBYLEX', ORDER, '[' .. first, '[' .. first .. '~', 'LIMIT', 0, most)
    for n = 1, #ids do ids[n] = string.sub(ids[n], #first + 15) end
    return ids
  end

  -- A share's place, its first two waiters and the next share's place; or, of a lane without places,
  -- the first in line.
  local function whose_turn()
    while turn == nil do
      head = head or call('ZRANGE', QUEUE, 0, 0, 'WITHSCORES')
      local plain = head[1] and math.floor(head[2] / LANE) or 512
      turn = head[1] and { lane = s.lane_at(plain), share = '', first = head[1] } or false
      for name in string.gmatch(s.lanes, '%S+') do
        local lane = s.lane_at(tonumber(name))
        if lane.n > plain then break end
        local two = call('ZRANGE', lane.places, 0, 1, 'WITHSCORES')
        if two[1] and lane.n == plain and not s.place_of(lane, '') then
          s.enter(lane, '')
          break
        elseif two[1] then
          local share, ids = two[1], ids_of(lane, two[1], 2)
          turn = { lane = lane, share = share, place = tonumber(two[2]), after = two[4], first = ids[1], second = ids[2] }
          if not ids[1] then
            go_idle(lane, share)
            turn = nil
          end
          break
        end
      end
    end
    if not turn and s.lanes ~= '' then
      call('HDEL', GATE, 'lanes')
      s.lanes = ''
    end
    return turn
  end

  function s.first() return whose_turn() and turn.first end

  -- The ids of those who go next, all of one share. `turn.more`: others of it wait behind them.
  function s.next(most)
    if not whose_turn() then return {} end
    if turn.after and most > 1 then
      local weight, step = s.terms_of(turn.share)
      most = turns.in_a_row(turn.place, turn.after, weight, step, most)
    end
    local ids = most == 1 and { turn.first, turn.second } or ids_of(turn.lane, turn.share, most + 1)
    turn.more = ids[most + 1] ~= nil
    ids[most + 1] = nil
    return ids
  end

  -- What `order` has of a waiter before its id, from its record; nil of one without a share.
  local function spot_in(record) return record and string.match(record, '^(%d%d%d%d|[^|@]+|%d+|)@') end
  local function share_in(spot) return spot and string.sub(spot, 6, -16) or '' end

  -- The record without its spot.
  function s.plain(record) return string.match(record, '^%d%d%d%d|[^|@]+|%d+|@(.*)$') or record end

  -- Permits of the lane whose turn it is were granted to the share of this record; they cost `paid`,
  -- the last of them `last`.
  function s.served(record, paid, last)
    if not turn.place then return end
    local lane, share = turn.lane, share_in(spot_in(record))
    local place = turn.share == share and turn.place or s.place_of(lane, share)
    local _, step = s.terms_of(share)
    turns.pass(lane, place, (paid - last) * step)
    call('ZADD', lane.places, place + paid * step, share)
    if lane.clock < FAR then return end
    for _, key in ipairs({ lane.places, lane.idle }) do
      local all = call('ZRANGE', key, 0, -1, 'WITHSCORES')
      for i = 1, #all, 2 do
        local stands = tonumber(all[i + 1])
        call('ZADD', key, math.max(stands < BEHIND and -BEHIND or BEHIND, stands - lane.clock), all[i])
      end
    end
    lane.clock = 0
  end

  -- It waits from now on, perhaps `again`; returns its spot, '' of one without a share.
  function s.join(id, score, share, again)
    local lane = s.lane_at(math.floor(score / LANE))
    local waits = share ~= '' and s.place_of(lane, share)
    if share == '' or not waits and call('ZCARD', lane.places) >= MOST then
      call('ZADD', QUEUE, score, id)
      head, turn = nil, nil
      return ''
    end
    local spot = format('%s%s|%013.0f|', lane.prefix, share, score % LANE)
    if not waits then s.enter(lane, share) end -- first: a share with a place and nobody in it leaves
    call('ZADD', ORDER, 0, spot .. id)
    if again or turn and turn.share == share then turn = nil end
    return spot
  end

  -- A script that stopped may have left a place in the line of the share whose turn it is without a
  -- record, which would say which place that is.
  local function spot_without_record(id)
    local first = turn and turn.share ~= '' and turn.lane.prefix .. turn.share .. '|'
    for _, member in ipairs(first and call('ZRANGEBYLEX', ORDER, '[' .. first, '[' .. first .. '~', 'LIMIT', 0, 1000) or {}) do
      if string.sub(member, #first + 15) == id then return string.sub(member, 1, #first + 14) end
    end
  end

  function s.leave(ids, records)
    local plain, spots, shares = {}, {}, {}
    for n, record in ipairs(records or call('HMGET', WAITERS, unpack(ids))) do
      local spot
      if record then spot = spot_in(record) else spot = spot_without_record(ids[n]) end
      if spot then
        spots[#spots + 1] = spot .. ids[n]
        shares[string.sub(spot, 1, -15)] = spot
      else
        plain[#plain + 1] = ids[n]
      end
    end
    if #plain > 0 then
      head = nil
      call('ZREM', QUEUE, unpack(plain))
    end
    if #spots > 0 then call('ZREM', ORDER, unpack(spots)) end
    for _, spot in pairs(shares) do
      local lane, share = s.lane_at(tonumber(string.sub(spot, 1, 4)) - 512), share_in(spot)
      if not (turn and turn.more) and not ids_of(lane, share, 1)[1] then go_idle(lane, share) end
    end
    turn = nil
  end

  -- The score of one with a share, by its record.
  function s.score_in(record)
    local lane, ticket = string.match(record, '^(%d%d%d%d)|[^|@]+|(%d+)|@')
    return lane and (lane - 512) * LANE + ticket
  end

  -- Its place in its share's line, or in that of those without one.
  function s.rank(id, record)
    local spot = spot_in(record)
    if not spot then return call('ZRANK', QUEUE, id) end
    return call('ZLEXCOUNT', ORDER, '[' .. string.sub(spot, 1, -15), '(' .. spot .. id)
  end

  function s.save(write)
    for _, lane in pairs(lanes) do
      if lane.moved then write('clock:' .. lane.name, lane.clock) end
    end
  end

  if not gate.weighing then return end

  -- So many of the first lane who may go next: `first` if it still waits there, then each share's first.
  function s.candidates(first, most)
    if not whose_turn() then return {} end
    local lane, ids = turn.lane, {}
    local shares = turn.place and call('ZRANGE', lane.places, 0, most - 1) or { '' }
    if first ~= '' then
      local record = call('HGET', WAITERS, first)
      local score = record and (s.score_in(record) or call('ZSCORE', QUEUE, first))
      if score and math.floor(score / LANE) == lane.n then ids[1] = first end
    end
    for _, share in ipairs(shares) do
      for _, id in ipairs(ids_of(lane, share, math.floor(most / #shares))) do
        if id ~= first then ids[#ids + 1] = id end
      end
    end
    return ids
  end

  -- A permit has cost less or more than its share was charged.
  function s.settle(receipt)
    local n, share, said, was = string.match(receipt, '|(.-)|(.-)|(.-)|(.*)$')
    if not n then return end
    local lane, price = s.lane_at(tonumber(n)), gate.weighing.price(was) - gate.weighing.price(said)
    local _, step = s.terms_of(share)
    turns.charge(lane, share, price * step)
    turn = nil
  end
end)() end
