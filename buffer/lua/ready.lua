-- ready.lua: an open group is finished; it keeps for as long as no trainer takes it.
-- include: whole.lua
-- include: outstanding.lua if full
local function leave_open(gid)
  redis.call('PERSIST', meta_of(gid))
  redis.call('PERSIST', group_of(gid))
  redis.call('ZREM', at('open'), gid)
  redis.call('ZREM', at('changed'), gid)
end

-- It stands among the ready groups, by its age too. `known` is what its meta hash says of start, counted,
-- slot and finished, if the script has that; `noted` are fields that are new with it.
local function enter_ready(gid, known, noted)
  local start, counted
  if policy then
    known = known or redis.call('HMGET', meta_of(gid), 'start', 'counted', 'slot')
    start, counted = tonumber(known[1] or policy.version), known[2] == '1'
    if not counted then -- it was taken in a line that is over
      for _, said in ipairs({'start', math.min(start, policy.version), 'counted', 1}) do noted[#noted + 1] = said end
      if start > policy.version then noted[#noted + 1], noted[#noted + 2] = 'orphan', 1 end
      start = math.min(start, policy.version)
    end
    stand_ready(gid, start, noted.finished)
  end
  redis.call('ZADD', at('ready'), noted.finished, gid)
  redis.call('HSET', meta_of(gid), 'state', 'ready', unpack(noted))
  if noted.count then noted.count() end
  if policy and not counted then tally(start, 1) end
  ring()
  if not policy then return end
  if known[3] then
    drop_slot(known[3])
    redis.call('HDEL', meta_of(gid), 'slot')
  else
    leave_queues(gid)
  end
  return too_old(start)
end

-- An open group is ready; `noted` are fields of its meta hash that are to be written anyway.
local function finish(gid, why, since, was_open, known, noted)
  noted = noted or {}
  noted.finished = since
  for _, said in ipairs({'why', why, 'finished', since}) do noted[#noted + 1] = said end
  local old = enter_ready(gid, known, noted)
  count('finished', 1)
  if was_open then leave_open(gid) end
  if old then end_too_old(gid) end
end

local function make_ready(gid, why, since)
  finish(gid, why, since or now, true)
end
