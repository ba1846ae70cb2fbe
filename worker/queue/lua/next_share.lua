-- next_share.lua: who is next among the shares of one queue. It needs the key jobs, and `call`.
--
-- A job with a share waits in the list of its share, rq:queue:<name>~<share>; all others, and what
-- RQ's own clients enqueue, wait in the queue's list, which counts as the share ''. Shares that have jobs
-- go by turns (`limiter/lua/turns.lua`). A job's price is 1. By seconds it is the mean run time of the
-- queue's jobs, and corrected as the job ends.
--
-- RQ's own workers take from the queue's list alone, and idle workers of ours block on it. So a
-- script that changes the shares ends with `feed_shares()` (`feed_shares.lua`): the next jobs in turn are
-- moved to that list, one of them, and two for each of RQ's workers. Jobs moved there have been served.
-- include: try.lua
local function list_of(share) return share == '' and JOBS or JOBS .. '~' .. share end

-- Most queues have no shares: what follows is made when it is first used.
local made_shares
local function shares()
  if made_shares then return made_shares end
-- include: limiter:turns.lua
  local shares, turns = {}, make_turns()
  local QUEUE = string.sub(JOBS, 10) -- rq:queue:<name>
  local KEPT = 'penstock:work:{' .. QUEUE .. '}'
  local SHARES, IDLE, WEIGHTS, CLOCK = KEPT .. ':shares', KEPT .. ':idle', KEPT .. ':weights', KEPT .. ':clock'
  local BEHIND = 2 ^ 42 -- places of shares with weight 0 begin here
  local MOST_SHARES = 10000 -- with jobs: each is a queue to RQ, which lists them all; or remembered
  local MOST_COUNTED = 100
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

  local function exactly(number) return string.format('%.17g', number) end -- Lua's own has 14 digits

  -- Its clock is read when it is first used; `fill_front` writes it.
  local track = setmetatable({ places = SHARES, idle = IDLE, behind = BEHIND, most = MOST_SHARES }, { __index = function(made, name)
    if name ~= 'clock' then return nil end
    made.clock = tonumber(call('GET', CLOCK) or 0) or 0
    return made.clock
  end })

  function shares.place_of(share) return turns.place_of(track, share) end

  function shares.waiting() return call('ZCARD', SHARES) end

  -- Whether its jobs may wait apart. Else they wait with those that have no share.
  function shares.admit(share) return shares.place_of(share) ~= nil or shares.waiting() < MOST_SHARES end

  local function length(list)
    local jobs = try('LLEN', list)
    return type(jobs) == 'number' and jobs or 0
  end

  -- It has jobs.
  function shares.join(share)
    if shares.place_of(share) then return end
    local weight, step = shares.terms_of(share)
    turns.enter(track, share, weight, step)
    if share ~= '' then call('SADD', 'rq:queues', list_of(share)) end
  end

  -- A job that RQ has enqueued for another run is the last of its share.
  function shares.again(id, share)
    call('HSET', 'rq:job:' .. id, 'penstock_again', 1)
    call('RPUSH', list_of(share), id)
    shares.join(share)
  end

  -- It has no place any more; whether others have. If not, nobody owes anything.
  local function forget(share)
    if turns.leave(track, share) then return true end
    call('DEL', CLOCK)
  end

  -- It has no more jobs; `own` is the place served last.
  local function leave(share, own)
    if forget(share) then turns.rest(track, share, own) end
    if share ~= '' then call('SREM', 'rq:queues', list_of(share)) end
  end

  -- It has no more jobs, by no turn of its own: it owes nothing for the next one.
  function shares.emptied(share)
    local place = shares.place_of(share)
    if not place then return end
    local _, step = shares.terms_of(share)
    leave(share, turns.served_until(track, place, step))
  end

  -- One of its jobs was not run after all; `paid` is what it was charged, if that is known.
  function shares.refund(share, paid)
    if length(list_of(share)) > 0 then shares.join(share) end
    local _, step = shares.terms_of(share)
    turns.charge(track, share, -step * (paid and tonumber(paid) / price or 1))
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
    turns.charge(track, share, step * (took - paid) / price)
    call('HSET', WEIGHTS, '~seconds', exactly(math.max(0.001, price + (took - price) / 64)))
  end

  local function serve(share, place, step, jobs)
    local last = turns.pass(track, place, (jobs - 1) * step)
    if call('LLEN', list_of(share)) > 0 then
      call('ZADD', SHARES, place + jobs * step, share)
    else
      leave(share, last)
    end
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
      local list = list_of(share)
      local first, after = tonumber(places[2]), tonumber(places[4])
      local ids = first_of(list, turns.in_a_row(first, after, weight, step, most))
      if #ids > 0 then
        local jobs = take(list, ids, share)
        serve(share, first, step, jobs)
        return jobs
      end
      forget(share) -- by a command of RQ's its list is empty, or will be filled again
    end
  end

  -- Shares whose lists one of RQ's commands has filled: rq-dashboard's compaction empties a list,
  -- and puts its jobs there again one by one. A queue of RQ's may have such a name: its jobs are of that queue.
  function shares.find_refilled()
    for _, list in ipairs(call('SMEMBERS', 'rq:queues')) do
      local share = string.sub(list, #JOBS + 2)
      if share ~= '' and list == list_of(share) and length(list) > 0 then
        local origin = try('HGET', 'rq:job:' .. call('LINDEX', list, 0), 'origin')
        if origin ~= string.sub(list, 10) then shares.join(share) end
      end
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
    if track.moved then call('SET', CLOCK, exactly(track.clock)) end
  end

  -- `before` has the terms until now of shares that may have new ones. A turn that was due by old
  -- ones comes by the new ones.
  function shares.reweigh(before)
    for share, old in pairs(before) do
      local weight, step = shares.terms_of(share)
      if weight ~= old.weight or step ~= old.step then
        local own = turns.served_until(track, shares.place_of(share), old.step)
        turns.enter(track, share, weight, step, own)
      end
    end
  end

  -- In the order of their turns; all, if `most` is 0.
  function shares.first(most) return call('ZRANGE', SHARES, 0, most - 1) end

  -- How many jobs wait. Beyond the first MOST_COUNTED shares it is one for each: there may be thousands.
  function shares.jobs()
    local counted = shares.first(MOST_COUNTED)
    local jobs = call('LLEN', JOBS) + shares.waiting() - #counted
    for _, share in ipairs(counted) do
      if share ~= '' then jobs = jobs + length(list_of(share)) end
    end
    return jobs
  end
  made_shares = shares
  return shares
end
