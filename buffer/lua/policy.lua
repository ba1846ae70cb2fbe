-- policy.lua: a task's policy on versions, and what is outstanding: slots, open and ready groups,
-- counted by the version at their start. Without a policy, or before a trainer has published,
-- `policy` is nil, and everything is as it is without versions.
-- include: task.lua
local policy, outstanding
local terms -- the policy's settings, also before a trainer has published
local touched, ring_late = false, false
local end_too_old -- a ready group that is too old; slots.lua says what happens to it

do
  local packed = redis.call('HGET', at('policy'), 'packed')
  if packed then
    terms = cjson.decode(packed)
    local names = {'version', 'taken', 'epoch', 'top', 'line', 'since', 'saved', 'fence', 'todo'}
    local stands = redis.call('HMGET', at('policy'), unpack(names))
    for i, name in ipairs(names) do
      terms[name] = tonumber(stands[i] or '')
    end
    local todo = stands[#names]
    terms.todo = todo and todo ~= '' and todo or nil
    if terms.version then policy = terms end
  end
end

local function load_outstanding()
  if outstanding then return end
  outstanding = {}
  local flat = redis.call('HGETALL', at('starts'))
  for i = 1, #flat, 2 do outstanding[tonumber(flat[i])] = tonumber(flat[i + 1]) end
  for start, by in pairs(sums.starts or {}) do
    start = tonumber(start)
    outstanding[start] = (outstanding[start] or 0) + by
  end
end

-- One more, or one less, is outstanding with this start. It is counted after it was noted in Redis.
local function tally(start, by)
  add('starts', string.format('%d', start), by)
  if outstanding then outstanding[start] = (outstanding[start] or 0) + by end
  touched = true
end

local function count_taken(by)
  policy.taken = policy.taken + by
  add('policy', 'taken', by)
  touched = true
end

-- With `order` `batch` a group has a target: the version under which it is taken, or a later one if
-- it lags. `groups_per_version` have the same one, and a group that is made again keeps its own.
local function aim(gid)
  if policy.order ~= 'batch' or redis.call('HEXISTS', meta_of(gid), 'target') == 1 then return end
  local target = policy.version
  local function aimed()
    local field = string.format('%d', target)
    return tonumber(redis.call('HGET', at('targets'), field) or '0') + (sums.targets and sums.targets[field] or 0)
  end
  while target < policy.version + policy.depth and aimed() >= policy.groups_per_version do
    target = target + 1
  end
  redis.call('HSET', meta_of(gid), 'target', target)
  add('targets', string.format('%d', target), 1)
end

-- It is never taken: another group gets its place.
local function lose_aim(gid)
  local target = tonumber(redis.call('HGET', meta_of(gid), 'target') or '')
  if not target then return end
  redis.call('HDEL', meta_of(gid), 'target')
  add('targets', string.format('%d', target), -1)
end

-- Whether each group counts as it should: a new line, or the first version, takes a few steps to that.
local function settled()
  return not policy.todo or string.find(policy.todo, 'ripen', 1, true) == 1
end

-- Admit: (depth + 1) * groups_per_version - taken - outstanding.
local function free_room()
  if not settled() then return 0 end
  load_outstanding()
  local all = 0
  for _, n in pairs(outstanding) do all = all + n end
  return (policy.depth + 1) * policy.groups_per_version - policy.taken - all
end

-- How many groups of this start may be taken now. Under `wait` a take leaves room for each older
-- group that is outstanding, so that it too is taken before it is older than max_age:
-- for each s: outstanding with a start up to s <= (s + max_age - version + 1) * groups_per_version - taken
local function may_take(start)
  local room = policy.groups_per_version - policy.taken
  if policy.when_old ~= 'wait' or policy.order == 'batch' then return room end
  load_outstanding()
  local older, sum = {}, 0
  for s, n in pairs(outstanding) do
    if s < start and n > 0 then older[#older + 1] = s end
  end
  table.sort(older)
  for _, s in ipairs(older) do
    sum = sum + outstanding[s]
    local versions = math.max(s + policy.max_age - policy.version, 0) + 1
    room = math.min(room, versions * policy.groups_per_version - policy.taken - sum)
  end
  return room
end

-- Whether a take may have a ready group: `place` is its start, or with the order `batch` its target.
local function may_go(place)
  if policy.order == 'batch' and place > policy.version then return false end
  return may_take(place) > 0
end

-- Ready groups stand by start, then by the time at which they finished.
local function aged_score(start, finished)
  local part = ((tonumber(finished) or now) - policy.since) / 2 ^ 36
  return start + math.max(0, math.min(part, 0.999))
end

-- A ready group waits to be taken; `start` and `finished` are those of its meta hash.
local function stand_ready(gid, start, finished)
  if policy.order == 'batch' then
    local target = tonumber(redis.call('HGET', meta_of(gid), 'target') or start)
    redis.call('ZADD', at('targeted'), aged_score(target, finished), gid)
  end
  redis.call('ZADD', at('aged'), aged_score(start, finished), gid)
end

local function leave_ready(gid)
  redis.call('ZREM', at('aged'), gid)
  if policy.order == 'batch' then redis.call('ZREM', at('targeted'), gid) end
end

local function too_old(start)
  return start < policy.version - policy.max_age
    and policy.when_old ~= 'mask' and policy.when_old ~= 'keep'
end

local function slot_of(id) return at('slot:' .. id) end
local function partial_of(gid) return at('partial:' .. gid) end

-- The waiters whose turn it is hear their bell; what they want is theirs until they came, or died.
-- `asks` holds what each wants and until when it is known to live.
local function each_waiter(from)
  local page, i = {}, 0
  return function()
    while true do
      i = i + 1
      if i > #page then
        page, i = redis.call('ZRANGE', at('waiting'), from, from + 31), 1
        if #page == 0 then return nil end
        from = from + #page
      end
      local ask = page[i]
      local want, lives = string.match(redis.call('HGET', at('asks'), ask) or '', '^(%d+) (%d+)$')
      if want and tonumber(lives) > now then return ask, tonumber(want) end
      redis.call('HDEL', at('asks'), ask, 'since:' .. ask)
      redis.call('DEL', at('turn:' .. ask))
      redis.call('ZREM', at('waiting'), ask)
      from = from - 1
    end
  end
end

local function room_for_slots()
  return redis.call('ZCARD', at('parked')) + math.max(0, free_room())
end

local function call_waiters()
  if redis.call('EXISTS', at('waiting')) == 0 then return end
  local room, called = room_for_slots(), 0
  if room < 1 then return end
  for ask, want in each_waiter(0) do
    local bell = at('turn:' .. ask)
    if redis.call('LLEN', bell) == 0 then
      redis.call('RPUSH', bell, '1')
      redis.call('PEXPIRE', bell, 60000)
    end
    room, called = room - want, called + 1
    if room < 1 or called == 32 then return end -- who comes has the next ones called
  end
end
