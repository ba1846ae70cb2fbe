-- publish.lua: the engines have a version. A lower one by the trainer that publishes, or the same by
-- one that takes over, begins a new line: what was trained on since is ready again.
-- KEYS   root
-- ARGV   version saved(the version of the last checkpoint, or empty) owner lead(1: it takes over)
-- REPLY  {done, version, line, stale(groups past the bound), returned}; done is 0 when another
--        trainer publishes
-- include: give_back.lua
-- include: targets.lua
-- include: idle.lua
local version = tonumber(VERSION)
if not terms then return redis.error_reply('NOPOLICY ' .. ROOT) end
local last, line = terms.version, terms.line or 0
local trainer = redis.call('HGET', at('policy'), 'trainer')
local took_over = trainer ~= OWNER
if trainer and took_over and LEAD == '0' then return {0, last or -1, line, 0, 0} end

local function begin(first)
  policy = terms
  policy.version, policy.taken, policy.epoch = version, 0, (policy.epoch or 0) + 1
  policy.top = math.max(version, policy.top or version)
  policy.line, policy.since = first and line + 1 or line, policy.since or now
  redis.call('HSET', at('policy'), 'version', version, 'taken', 0, 'epoch', policy.epoch, 'top', policy.top,
    'line', policy.line, 'since', policy.since)
  redis.call('XADD', at('versions'), 'MAXLEN', '~', 64, '*', 'version', VERSION, 'line', policy.line)
  touched.taken, ring_late = true, true
end

-- What was there before the first version counts as begun under it.
local function adopt()
  for _, index in ipairs({'open', 'ready'}) do
    for _, gid in ipairs(redis.call('ZRANGE', at(index), 0, -1)) do
      local meta = redis.call('HMGET', meta_of(gid), 'counted', 'finished')
      redis.call('HSET', meta_of(gid), 'assumed', 1)
      outstand(gid, version, meta[1])
      if index == 'ready' then stand_ready(gid, version, meta[2]) end
    end
  end
  retarget()
end

-- What began under a version that is no more counts as begun under the one that the line continues from.
local function clamp(gid)
  local meta = redis.call('HMGET', meta_of(gid), 'start', 'counted', 'finished')
  if not meta[1] or tonumber(meta[1]) <= version then return end
  redis.call('HSET', meta_of(gid), 'start', version, 'orphan', 1)
  if meta[2] == '1' then
    tally(tonumber(meta[1]), -1)
    tally(version, 1)
  end
  redis.call('ZADD', at('aged'), 'XX', aged_score(version, meta[3]), gid)
  redis.call('ZADD', at('parked'), 'XX', version, gid)
end

local function clamp_all()
  for _, index in ipairs({'open', 'ready', 'parked'}) do
    for _, gid in ipairs(redis.call('ZRANGE', at(index), 0, -1)) do clamp(gid) end
  end
  for _, id in ipairs(redis.call('ZRANGE', at('slots'), 0, -1)) do
    local slot = redis.call('HMGET', slot_of(id), 'start', 'counts', 'gid')
    if slot[3] and slot[3] ~= '' then clamp(slot[3]) end -- of what was parked it may be in no index
    if slot[1] and tonumber(slot[1]) > version then
      redis.call('HSET', slot_of(id), 'start', version)
      if slot[2] == '1' then
        tally(tonumber(slot[1]), -1)
        tally(version, 1)
      end
    end
  end
end

-- A group that was trained on in the line that is over.
local function bring_back(gid)
  let_go(gid)
  local meta = redis.call('HMGET', meta_of(gid), 'bytes', 'finished', 'start')
  if not meta[2] or redis.call('EXISTS', group_of(gid)) == 0 then return 0 end
  for _, index in ipairs({'kept', 'delivered'}) do redis.call('ZREM', at(index), gid) end
  redis.call('HDEL', meta_of(gid), 'closed')
  redis.call('PERSIST', meta_of(gid))
  redis.call('PERSIST', group_of(gid))
  redis.call('ZADD', at('ready'), meta[2], gid)
  redis.call('HSET', meta_of(gid), 'state', 'ready', 'returned', now,
    'start', math.min(version, tonumber(meta[3] or version)), 'orphan', 1)
  count('bytes', tonumber(meta[1] or '0'))
  stand_by_age(gid)
  return 1
end

local function begin_line()
  begin(true)
  clamp_all()
  local returned = 0
  for _, receipt in ipairs(redis.call('ZRANGE', at('leases'), 0, -1)) do
    local under = redis.call('HGET', at('batch:' .. receipt), 'version')
    if under and tonumber(under) >= version then
      for _, gid in ipairs(redis.call('LRANGE', at('batch:' .. receipt .. ':groups'), 0, -1)) do
        clamp(gid)
        returned = returned + 1
      end
      give_back(receipt)
    end
  end
  for _, gid in ipairs(redis.call('ZRANGEBYSCORE', at('used'), version, '+inf')) do
    returned = returned + bring_back(gid)
  end
  retarget()
  count('returned_by_line', returned)
  return returned
end

wake()
redis.call('HSET', at('policy'), 'trainer', OWNER)
local stale, returned = 0, 0
if not last then
  begin(true)
  adopt()
elseif version > last then
  begin(false)
  for _, target in ipairs(redis.call('HKEYS', at('targets'))) do
    if tonumber(target) < version then redis.call('HDEL', at('targets'), target) end
  end
  stale = ripen_all()
elseif version < last or took_over then
  returned = begin_line()
  stale = ripen_all()
end
if SAVED ~= '' then
  policy.saved = math.min(tonumber(SAVED), version)
elseif policy.saved then
  policy.saved = math.min(policy.saved, version)
end
if policy.saved then redis.call('HSET', at('policy'), 'saved', policy.saved) end
save_policy()
return {1, policy.version, policy.line, stale, returned}
