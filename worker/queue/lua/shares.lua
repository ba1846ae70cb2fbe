-- shares.lua: who is next among the shares of one queue. It needs the key jobs, and `call`.
--
-- A job with a share waits in the list of its share, rq:queue:<name>~<share>; all others, and what
-- RQ's own clients enqueue, wait in the queue's list, which counts as the share ''. A share that
-- has jobs has a place in `shares`: the virtual time at which its next job is due. Each job served
-- moves that by 1/weight, and the lowest place is served next. By seconds it is mean/weight, with the
-- mean run time of the queue's jobs, and corrected as the job ends. The clock is the place served last.
-- A share without jobs is kept in `idle` while it is ahead of the clock: it is owed nothing, and
-- begins where it ended. The same, ahead of all: weight 0, served when nobody else waits. When no
-- share has jobs, the clock starts again at 0.
--
-- RQ's own workers take from the queue's list alone, and idle workers of ours block on it. So a
-- script that changes the shares ends with `feed()`: the next jobs in turn are moved to that list,
-- one of them, and two for each of RQ's workers. Jobs moved there have been served.
-- include: try.lua
local shares = {}

-- Most queues have no shares: what follows is made when it is first used.
local function make_shares()
  local QUEUE = string.sub(JOBS, 10) -- rq:queue:<name>
  local KEPT = 'penstock:work:{' .. QUEUE .. '}'
  local SHARES, IDLE, WEIGHTS, CLOCK = KEPT .. ':shares', KEPT .. ':idle', KEPT .. ':weights', KEPT .. ':clock'
  local BEHIND = 2 ^ 42 -- places of shares with weight 0 begin here
  local MOST_SHARES = 10000 -- with jobs: each is a queue to RQ, which lists them all; or remembered
  local MOST_STOCK = 500 -- workers of RQ's own whose next jobs lie ready

  local price -- of a job that is served: 1, or the mean of the queue's in seconds
  local by_seconds

  -- Its weight, and by how much a job that is served moves its place.
  function shares.terms_of(share)
    local kept = call('HMGET', WEIGHTS, share, '*', '~seconds')
    local weight = tonumber(kept[1] or kept[2]) or 1
    price, by_seconds = tonumber(kept[3]) or 1, tonumber(kept[3]) and kept[3]
    return weight, price / (weight > 0 and weight or 1)
  end

  local function exactly(place) return string.format('%.17g', place) end -- Lua's own has 14 digits

  local at, moved -- as read, or set, in this call; `fill_front` writes it
  local function clock()
    at = at or tonumber(call('GET', CLOCK) or 0) or 0
    return at
  end

  function shares.place_of(share) return tonumber(call('ZSCORE', SHARES, share) or nil) end

  local function set_place(share, place) call('ZADD', SHARES, exactly(place), share) end

  local function in_time(place) return place < BEHIND and place or place - BEHIND end

  function shares.waiting() return call('ZCARD', SHARES) end

  -- Whether its jobs may wait apart. Else they wait with those that have no share.
  function shares.admit(share) return shares.place_of(share) ~= nil or shares.waiting() < MOST_SHARES end

  -- The place of its next job, for a share that was served until `own`.
  function shares.due(share, own)
    local weight, step = shares.terms_of(share)
    return own + step + (weight > 0 and 0 or BEHIND)
  end

  local function length(list)
    local jobs = try('LLEN', list)
    return type(jobs) == 'number' and jobs or 0
  end

  -- It has jobs.
  function shares.join(share)
    if shares.place_of(share) then return end
    local own = tonumber(call('ZSCORE', IDLE, share) or 0)
    call('ZREM', IDLE, share)
    set_place(share, shares.due(share, math.max(own, clock())))
    if share ~= '' then call('SADD', 'rq:queues', shares.list_of(share)) end
  end

  -- A job that RQ has enqueued for another run is the last of its share.
  function shares.again(id, share)
    call('HSET', 'rq:job:' .. id, 'penstock_again', 1)
    call('RPUSH', shares.list_of(share), id)
    shares.join(share)
  end

  -- It has no place any more; whether others have. If not, nobody owes anything.
  local function forget(share)
    call('ZREM', SHARES, share)
    if shares.exist() then return true end
    at, moved = 0, false
    call('DEL', CLOCK, IDLE)
  end

  -- Until where it was served, while that is ahead of the clock. Who owes least is forgotten first.
  local function keep_idle(share, own)
    call('ZREMRANGEBYSCORE', IDLE, '-inf', exactly(clock()))
    call('ZADD', IDLE, exactly(own), share)
    call('ZREMRANGEBYRANK', IDLE, 0, -1 - MOST_SHARES)
  end

  -- It has no more jobs; `own` is the place served last.
  local function leave(share, own)
    if forget(share) and own > clock() then keep_idle(share, own) end
    if share ~= '' then call('SREM', 'rq:queues', shares.list_of(share)) end
  end

  -- It has no more jobs, by no turn of its own: it owes nothing for the next one.
  function shares.emptied(share)
    local place = shares.place_of(share)
    if not place then return end
    local _, step = shares.terms_of(share)
    leave(share, in_time(place) - step)
  end

  -- It paid so much too little.
  local function charge(share, more)
    local place, own = shares.place_of(share), call('ZSCORE', IDLE, share)
    if place then
      set_place(share, math.max(place + more, place >= BEHIND and BEHIND or -BEHIND))
    elseif shares.exist() and (own or more > 0) then -- else nobody waits, and nothing is owed
      keep_idle(share, math.max(tonumber(own or 0), clock()) + more)
    end
  end

  -- One of its jobs was not run after all; `paid` is what it was charged, if that is known.
  function shares.refund(share, paid)
    if length(shares.list_of(share)) > 0 then shares.join(share) end
    local _, step = shares.terms_of(share)
    charge(share, -step * (paid and tonumber(paid) / price or 1))
  end

  -- What a job is charged as it starts, if that is corrected as it ends; else nil.
  function shares.charged()
    if price == nil then shares.terms_of('*') end
    return by_seconds
  end

  -- A job that was charged so much has run for `took` seconds.
  function shares.settle(share, paid, took)
    local _, step = shares.terms_of(share)
    if not by_seconds then return end
    charge(share, step * (took - paid) / price)
    call('HSET', WEIGHTS, '~seconds', exactly(math.max(0.001, price + (took - price) / 64)))
  end

  -- How many jobs of the next share may be taken before another share's turn.
  local function in_a_row(places, weight, step, most)
    if not places[3] then return most end
    if weight == 0 then return 1 end
    return math.max(1, math.min(most, math.ceil((places[4] - places[2]) / step)))
  end

  local function serve(share, place, step, jobs)
    local last = in_time(place + (jobs - 1) * step)
    if last > clock() then at, moved = last, true end
    local more = call('LLEN', shares.list_of(share)) > 0
    if more then set_place(share, place + jobs * step) else leave(share, last) end
  end

  -- A key of another type that somebody made there is as a list without jobs: other shares go on.
  local function first_of(list, most)
    local ids = try('LRANGE', list, 0, most - 1)
    return ids.err and {} or ids
  end

  -- Has `take(list, ids, share)` take the first of the share whose turn it is. Returns how many it
  -- took; 0 if no share has jobs.
  function shares.in_turn(most, take)
    while true do
      local places = call('ZRANGE', SHARES, 0, 1, 'WITHSCORES')
      local share = places[1]
      if not share then return 0 end
      local weight, step = shares.terms_of(share)
      local list = shares.list_of(share)
      local ids = first_of(list, in_a_row(places, weight, step, most))
      if #ids > 0 then
        local jobs = take(list, ids, share)
        serve(share, tonumber(places[2]), step, jobs)
        return jobs
      end
      forget(share) -- by a command of RQ's its list is empty, or will be filled again
    end
  end

  -- Shares whose lists one of RQ's commands has filled: rq-dashboard's compaction empties a list,
  -- and puts its jobs there again one by one.
  function shares.find_refilled()
    for _, list in ipairs(call('SMEMBERS', 'rq:queues')) do
      local share = string.sub(list, #JOBS + 2)
      if share ~= '' and list == shares.list_of(share) and length(list) > 0 then shares.join(share) end
    end
  end

  -- Jobs that may lie in the queue's list, already served.
  local ahead
  function shares.window()
    if ahead then return ahead end
    local stock = call('SCARD', 'rq:workers:' .. QUEUE) - call('ZCARD', KEPT .. ':workers')
    ahead = 1 + 2 * math.max(0, math.min(stock, MOST_STOCK))
    return ahead
  end

  -- In both lists for a moment, should the script stop there: a job runs once, however often it is listed.
  local function move_to_front(list, ids)
    call('RPUSH', JOBS, unpack(ids))
    call('LTRIM', list, #ids, -1)
    return #ids
  end

  function shares.fill_front()
    local most = shares.window() - call('LLEN', JOBS)
    if most > 0 then shares.emptied('') end -- what is left there counts as served
    while most > 0 do
      local moved_now = shares.in_turn(most, move_to_front)
      if moved_now == 0 then break end
      most = most - moved_now
    end
    if moved then call('SET', CLOCK, exactly(at)) end
  end

  -- `before` has the terms until now of shares that may have new ones. A turn that was due by old
  -- ones comes by the new ones.
  function shares.reweigh(before)
    for share, old in pairs(before) do
      local weight, step = shares.terms_of(share)
      if weight ~= old.weight or step ~= old.step then
        local own = in_time(shares.place_of(share)) - old.step
        set_place(share, shares.due(share, math.max(own, clock())))
      end
    end
  end

  -- In the order of their turns; all, if `most` is 0.
  function shares.first(most) return call('ZRANGE', SHARES, 0, most - 1) end

  function shares.jobs()
    local jobs = call('LLEN', JOBS)
    for _, share in ipairs(shares.first(0)) do
      if share ~= '' then jobs = jobs + length(shares.list_of(share)) end
    end
    return jobs
  end
end

function shares.list_of(share) return share == '' and JOBS or JOBS .. '~' .. share end
function shares.exist() return call('EXISTS', 'penstock:work:{' .. string.sub(JOBS, 10) .. '}:shares') == 1 end
function shares.feed() if shares.exist() then shares.fill_front() end end

setmetatable(shares, { __index = function(_, name)
  make_shares()
  return rawget(shares, name)
end })
