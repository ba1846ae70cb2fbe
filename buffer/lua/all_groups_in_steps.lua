-- all_groups_in_steps.lua: what a publication, or a change of the policy, has to do to all groups. It is done in
-- steps of a bounded size. What is left is in the policy's hash (`todo`: the chore and its cursor), so
-- the next script of its kind goes on with it. A chore may see a group twice.
-- include: return_batch.lua
local STEP = 200
-- Those of a new line, those of the first version, those of each change; each goes on with the next. Their names
-- are stored, so they stay: `ripen_…` ends what is too old.
local NEXT = {line = 'clamp_slots', clamp_slots = 'clamp_open', clamp_open = 'clamp_ready', clamp_ready = 'clamp_parked',
  clamp_parked = 'leases', leases = 'used', used = 'kept', kept = 'aim_open',
  adopt_open = 'adopt_ready', adopt_ready = 'aim_open',
  aim_open = 'aim_ready', aim_ready = 'aim_parked', aim_parked = 'aim_again', aim_again = 'aim_slots',
  aim_slots = 'aim_all', aim_all = 'ripen_slots',
  ripen_slots = 'ripen_open', ripen_open = 'ripen_ready', ripen_ready = 'ripen_parked'}

local worked = 0 -- by this script

local function each_of(index, cursor, see)
  local page = redis.call('ZSCAN', at(index), cursor, 'COUNT', STEP)
  worked = worked + #page[2] / 2
  for i = 1, #page[2], 2 do see(page[2][i]) end
  return page[1]
end

-- The first of a range, which `see` takes out of it.
local function first_of(index, from, to, see)
  local page = redis.call('ZRANGEBYSCORE', at(index), from, to, 'LIMIT', 0, STEP)
  worked = worked + #page
  for _, member in ipairs(page) do see(member) end
  return #page < STEP and '0' or '1'
end

-- The group is outstanding itself, if it was not before.
local function outstand(gid, start, counted)
  if counted == '1' then return end
  redis.call('HSET', meta_of(gid), 'start', start, 'counted', 1)
  tally(start, 1)
end

-- What was there before the first version counts as begun under it.
local function adopt(gid)
  local meta = redis.call('HMGET', meta_of(gid), 'counted', 'finished', 'state')
  if meta[1] ~= '1' then redis.call('HSET', meta_of(gid), 'assumed', 1) end
  outstand(gid, policy.version, meta[1])
  if meta[3] == 'ready' then stand_ready(gid, policy.version, meta[2]) end
end

-- What began under a version that is no more counts as begun under the one that the line continues from.
local function clamp(gid)
  local version = policy.version
  local meta = redis.call('HMGET', meta_of(gid), 'start', 'counted', 'finished')
  if meta[1] and tonumber(meta[1]) > version then
    redis.call('HSET', meta_of(gid), 'start', version, 'orphan', 1)
    if meta[2] == '1' then
      tally(tonumber(meta[1]), -1)
      tally(version, 1)
    end
  end
  redis.call('ZADD', at('aged'), 'XX', aged_score(math.min(version, tonumber(meta[1] or version)), meta[3]), gid)
  if redis.call('ZSCORE', at('parked'), gid) then
    redis.call('ZADD', at('parked'), 'XX', math.min(version, tonumber(meta[1] or version)), gid)
  end
end

local function clamp_slot(id)
  local version = policy.version
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

-- A group that was trained on in the line that is over. It is ready before it is nowhere else.
local function bring_back(gid)
  local meta = redis.call('HMGET', meta_of(gid), 'bytes', 'finished', 'start', 'state', 'line')
  if meta[4] ~= 'consumed' or not meta[2] or meta[5] == tostring(policy.line) then return end
  if redis.call('EXISTS', group_of(gid)) == 0 then return end
  redis.call('PERSIST', meta_of(gid))
  redis.call('PERSIST', group_of(gid))
  local start = math.min(policy.version, tonumber(meta[3] or policy.version))
  local old = enter_ready(gid, {start}, {'returned', now, 'orphan', 1, finished = meta[2], count = function()
    count('bytes', tonumber(meta[1] or '0'))
    count('returned_by_line', 1)
    policy.returned, policy.gone = policy.returned + 1, policy.gone - 1
  end})
  redis.call('HDEL', meta_of(gid), 'closed')
  if old then end_too_old(gid) end
  for _, index in ipairs({'kept', 'delivered'}) do redis.call('ZREM', at(index), gid) end
end

local function undo(gid, under)
  if under >= policy.version then
    local bytes = bytes_of(gid)
    bring_back(gid)
    redis.call('ZREM', at('undone'), gid)
    count('used_bytes', -bytes)
  else
    redis.call('ZADD', at('used'), under, gid)
    redis.call('ZREM', at('undone'), gid)
  end
end

-- A checkpoint older than the newest: what was let go since then may still be kept.
local function bring_back_kept(gid)
  local under = tonumber(redis.call('HGET', meta_of(gid), 'version') or '')
  if under and under >= policy.version then bring_back(gid) end
end

-- With the order `batch`, each group gets its target once more: they keep their order, and groups
-- without one go by their start.
local function gather(gid)
  if gid == '' or not gid then return end
  local meta = redis.call('HMGET', meta_of(gid), 'target', 'start')
  redis.call('ZADD', at('aiming'), tonumber(meta[1] or meta[2] or policy.version), gid)
end

local function aim_anew(gid)
  redis.call('HDEL', meta_of(gid), 'target')
  aim(gid)
  if redis.call('ZSCORE', at('ready'), gid) then
    local meta = redis.call('HMGET', meta_of(gid), 'start', 'finished')
    stand_ready(gid, tonumber(meta[1] or policy.version), meta[2])
  end
  redis.call('ZREM', at('aiming'), gid)
end

local function end_old_slot(id)
  local slot = redis.call('HMGET', slot_of(id), 'start', 'gid', 'counts')
  local start = tonumber(slot[1] or policy.version)
  if slot[3] ~= '1' and slot[2] then
    start = tonumber(redis.call('HGET', meta_of(slot[2]), 'start') or start)
  end
  if too_old(start) then end_slot(id, 'old') end
end

local function end_old_open(gid)
  local meta = redis.call('HMGET', meta_of(gid), 'start', 'counted')
  if meta[2] == '1' and too_old(tonumber(meta[1])) then end_too_old(gid) end
end

local function any_too_old()
  load_outstanding()
  for start, n in pairs(outstanding) do
    if n > 0 and too_old(start) then return true end
  end
  return false
end

local function end_old_of(index)
  if not any_too_old() then return '0' end
  return first_of(index, '-inf', string.format('(%d', policy.version - policy.max_age), end_too_old)
end

-- How many groups were trained on under this version and later ones, in the line that is over.
local function undo_trained()
  local trained, sum = redis.call('HGETALL', at('trained')), 0
  for i = 1, #trained, 2 do
    if tonumber(trained[i]) >= policy.version then
      sum = sum + tonumber(trained[i + 1])
      redis.call('HDEL', at('trained'), trained[i])
    end
  end
  return sum
end

-- No batch of the line that is over is acknowledged from here on.
local function end_line()
  for _, receipt in ipairs(redis.call('ZRANGE', at('leases'), 0, -1)) do
    local batch = redis.call('HMGET', at('batch:' .. receipt), 'version', 'state')
    if (batch[2] == 'leased' or batch[2] == 'consuming') and batch[1] and tonumber(batch[1]) >= policy.version then
      redis.call('HSET', at('batch:' .. receipt), 'state', 'returning')
    end
  end
  if redis.call('EXISTS', at('used')) == 1 then redis.call('RENAME', at('used'), at('undone')) end
  policy.gone = policy.gone + undo_trained()
  return '0'
end

-- Each answers with its next cursor, '0' at its end.
local CHORES = {
  line = end_line,
  adopt_open = function(cursor) return each_of('open', cursor, adopt) end,
  adopt_ready = function(cursor) return each_of('ready', cursor, adopt) end,
  clamp_slots = function(cursor) return each_of('slots', cursor, clamp_slot) end,
  clamp_open = function(cursor) return each_of('open', cursor, clamp) end,
  clamp_ready = function() return first_of('aged', policy.version + 1, '+inf', clamp) end,
  clamp_parked = function() return first_of('parked', string.format('(%d', policy.version), '+inf', clamp) end,
  leases = function()
    for _, receipt in ipairs(redis.call('ZRANGE', at('leases'), 0, -1)) do
      if worked >= STEP then return '1' end
      if redis.call('HGET', at('batch:' .. receipt), 'state') == 'returning' then
        local walked, more, back = give_back(receipt, STEP)
        worked, policy.returned = worked + walked, policy.returned + back
        count('returned_by_line', back)
        if more then return '1' end
      end
    end
    return '0'
  end,
  used = function()
    local page = redis.call('ZRANGE', at('undone'), 0, STEP - 1, 'WITHSCORES')
    worked = worked + #page / 2
    for i = 1, #page, 2 do undo(page[i], tonumber(page[i + 1])) end
    return #page < 2 * STEP and '0' or '1'
  end,
  kept = function(cursor) return each_of('kept', cursor, bring_back_kept) end,
  aim_all = function(cursor)
    if cursor == '0' then
      redis.call('UNLINK', at('targets'), at('targeted'))
      if policy.order ~= 'batch' then return '0' end
      if policy.taken > 0 then redis.call('HSET', at('targets'), policy.version, policy.taken) end
      sums.targets = nil
      redis.call('HSET', at('policy'), 'todo', 'aim_all 1') -- those that follow are counted once
    end
    local page = redis.call('ZRANGE', at('aiming'), 0, STEP - 1)
    worked = worked + #page
    for _, gid in ipairs(page) do aim_anew(gid) end
    return #page < STEP and '0' or '1'
  end,
  ripen_slots = function(cursor)
    return any_too_old() and each_of('slots', cursor, end_old_slot) or '0'
  end,
  ripen_open = function(cursor)
    return any_too_old() and each_of('open', cursor, end_old_open) or '0'
  end,
  ripen_ready = function() return end_old_of('aged') end,
  ripen_parked = function() return end_old_of('parked') end,
}
for _, index in ipairs({'open', 'ready', 'parked', 'again'}) do
  CHORES['aim_' .. index] = function(cursor)
    return policy.order == 'batch' and each_of(index, cursor, gather) or '0'
  end
end
CHORES.aim_slots = function(cursor)
  if policy.order ~= 'batch' then return '0' end
  return each_of('slots', cursor, function(id) gather(redis.call('HGET', slot_of(id), 'gid')) end)
end

-- From this chore on, with nothing of it done yet.
local function begin_chores(first)
  policy.todo = first .. ' 0'
  redis.call('HSET', at('policy'), 'todo', policy.todo)
end

local function load_tallies()
  local said = redis.call('HMGET', at('policy'), 'stale', 'returned', 'gone')
  policy.stale, policy.returned, policy.gone = tonumber(said[1] or '0'), tonumber(said[2] or '0'),
    tonumber(said[3] or '0')
end

-- What a trainer is answered: whether there is more to do, and what was done so far.
local function progress()
  load_tallies()
  return policy.todo and 1 or 0, policy.stale, policy.returned, math.max(0, policy.gone)
end

-- Some steps, of some hundred groups in all. The last one calls those who wait for slots.
local function do_chores()
  if not policy or not policy.todo then return end
  load_tallies()
  local before, chore, cursor = ended_too_old, string.match(policy.todo, '^(%S+) (%d+)$')
  while chore and worked < STEP do
    cursor = CHORES[chore](cursor)
    if cursor == '0' then chore = NEXT[chore] end
  end
  policy.stale = policy.stale + ended_too_old - before
  policy.todo = chore and chore .. ' ' .. cursor or nil
  redis.call('HSET', at('policy'), 'stale', policy.stale, 'returned', policy.returned,
    'gone', policy.gone, 'todo', policy.todo or '')
  touched, ring_late = true, true
end
