-- share_terms.lua: what an operator sees of a gate's shares, and sets.
-- include: next_share.lua
--
-- Both act on `gate.sharing`, of a gate that has shares.

-- New weights ('' forgets one). A turn that was due by old ones comes by the new ones. Changes
-- nothing and returns false if there would be too many.
local function reweigh(changes)
  local MOST, WEIGHTS = 10000, GATE .. ':weights' -- shares with a weight of their own
  local s, more_weights, before = gate.sharing, 0, {}
  for _, change in ipairs(changes) do
    local kept = call('HEXISTS', WEIGHTS, change[1])
    more_weights = more_weights + (change[2] == '' and -kept or 1 - kept)
  end
  if more_weights > 0 and call('HLEN', WEIGHTS) + more_weights > MOST then return false end
  for name in string.gmatch(s.lanes, '%S+') do
    local lane = s.lane_at(tonumber(name))
    for _, share in ipairs(call('ZRANGE', lane.places, 0, -1)) do
      local weight, step = s.terms_of(share)
      before[#before + 1] = { lane, share, weight, step }
    end
  end
  for _, change in ipairs(changes) do
    if change[2] == '' then call('HDEL', WEIGHTS, change[1]) else call('HSET', WEIGHTS, change[1], change[2]) end
  end
  s.weights = {}
  for _, old in ipairs(before) do
    local lane, share, weight, step = old[1], old[2], s.terms_of(old[2])
    if weight ~= old[3] or step ~= old[4] then
      s.enter(lane, share, s.own(lane, s.place_of(lane, share), old[4]))
    end
  end
  return true
end

-- The weight of all without one of their own; how many shares have places; then each of the first
-- `most` by turns, and of those with a weight: its name, how many wait, its own weight or ''.
local function show_shares(most)
  local s, ORDER, all = gate.sharing, GATE .. ':order', call('HGETALL', GATE .. ':weights')
  local places, listed, counts, own, weighed = 0, {}, {}, {}, {}
  local function list(share, waiting)
    if not counts[share] then listed[#listed + 1] = share end
    counts[share] = (counts[share] or 0) + waiting
  end
  for name in string.gmatch(s.lanes, '%S+') do
    local lane = s.lane_at(tonumber(name))
    places = places + call('ZCARD', lane.places)
    for _, share in ipairs(call('ZRANGE', lane.places, 0, most - 1)) do
      local first = lane.prefix .. share .. '|'
      list(share, share == '' and 0 or call('ZLEXCOUNT', ORDER, '[' .. first, '[' .. first .. '~'))
    end
  end
  local plain = call('ZCARD', QUEUE)
  if plain > 0 then list('', plain) end
  for i = 1, #all, 2 do
    own[all[i]] = all[i + 1]
    if all[i] ~= '*' then weighed[#weighed + 1] = all[i] end
  end
  table.sort(weighed)
  for n = 1, math.min(#weighed, most) do list(weighed[n], 0) end
  local reply = { own['*'] or '1', places }
  for n, share in ipairs(listed) do reply[n + 2] = { share, counts[share], own[share] or '' } end
  return reply
end
