-- ready.lua: an open group is finished; it keeps for as long as no trainer takes it.
-- include: policy.lua
local function leave_open(gid)
  redis.call('ZREM', at('open'), gid)
  redis.call('ZREM', at('changed'), gid)
  redis.call('PERSIST', meta_of(gid))
  redis.call('PERSIST', group_of(gid))
end

-- It waits for no slot any more. Mostly no group does: that is asked once a script.
local anyone_waits
local function leave_queues(gid)
  if anyone_waits == nil then anyone_waits = redis.call('EXISTS', at('parked'), at('again')) > 0 end
  if not anyone_waits then return end
  redis.call('ZREM', at('parked'), gid)
  redis.call('ZREM', at('again'), gid)
end

-- A slot is over: its group has its items, or is somebody else's to make.
local function drop_slot(id)
  local slot = redis.call('HMGET', slot_of(id), 'start', 'counts')
  if not slot[1] then return end
  if slot[2] == '1' then tally(tonumber(slot[1]), -1) end
  redis.call('DEL', slot_of(id))
  redis.call('ZREM', at('slots'), id)
end

-- The group is outstanding itself, if it was not before.
local function outstand(gid, start, counted)
  if counted == '1' then return end
  redis.call('HSET', meta_of(gid), 'start', start, 'counted', 1)
  tally(start, 1)
end

local function stand_by_age(gid, known)
  local meta = known or redis.call('HMGET', meta_of(gid), 'start', 'counted', 'slot', 'finished')
  local start = tonumber(meta[1] or policy.version)
  if meta[2] ~= '1' then start = math.min(start, policy.version) end -- it was taken in a line that is over
  outstand(gid, start, meta[2])
  if meta[3] then
    drop_slot(meta[3])
    redis.call('HDEL', meta_of(gid), 'slot')
  else
    leave_queues(gid)
  end
  if too_old(start) then return ripen(gid) end
  stand_ready(gid, start, meta[4])
end

-- `known` is what its meta hash says of start, counted, slot and finished, where the script has that.
local function enter_ready(gid, why, since, was_open, known)
  redis.call('ZADD', at('ready'), since, gid)
  redis.call('HSET', meta_of(gid), 'state', 'ready', 'why', why, 'finished', since)
  if was_open then leave_open(gid) end
  count('finished', 1)
  ring()
  if policy then stand_by_age(gid, known) end
end

local function make_ready(gid, why, since)
  enter_ready(gid, why, since or now, true)
end
