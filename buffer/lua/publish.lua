-- publish.lua: the engines have a version. A lower one by the trainer that publishes, or the same by
-- one that takes over, begins a new line: what was trained on since is ready again. What there is to
-- do to all groups is begun here, and done by catch_up.lua.
-- KEYS   root
-- ARGV   version saved(the version of the last checkpoint, or empty) owner lead(1: it takes over)
--        epoch(the last that the caller knows: a copy that comes after a later publication does nothing)
-- REPLY  {done, version, line, epoch, more(1: catch_up.lua has further steps), stale(groups past the bound),
--        returned, gone(groups trained on since, of which nothing is kept)}; done is 0 when another
--        trainer publishes. It is 2 while the last publication has steps left, or if the epoch is another by
--        now: this one is to be repeated
-- include: all_groups_in_steps.lua
-- include: idle.lua
local version = tonumber(VERSION)
local MOST_VERSIONS = 256 -- whose trained groups are counted
if not terms then return redis.error_reply('NOPOLICY ' .. ROOT) end
local last, line, epoch = terms.version, terms.line or 0, terms.epoch or 0
if tonumber(EPOCH) ~= epoch then return {2, last or -1, line, epoch, 0, 0, 0, 0} end
local trainer = redis.call('HGET', at('policy'), 'trainer')
local took_over = trainer ~= OWNER
if trainer and took_over and LEAD == '0' then return {0, last or -1, line, epoch, 0, 0, 0, 0} end
return whole(function()
  if policy and policy.todo and (took_over or version ~= last) then
    do_chores()
    return {2, last, line, epoch, 0, 0, 0, 0}
  end

  -- With what there is to do for it, if there is anything.
  local function begin(first, chore)
    policy = terms
    policy.version, policy.taken, policy.epoch = version, 0, (policy.epoch or 0) + 1
    sums.policy = nil
    policy.top = math.max(version, policy.top or version)
    policy.line, policy.since = first and line + 1 or line, policy.since or now
    policy.todo = chore and chore .. ' 0' or policy.todo
    redis.call('HSET', at('policy'), 'version', version, 'taken', 0, 'epoch', policy.epoch, 'top', policy.top,
      'line', policy.line, 'since', policy.since, 'stale', 0, 'returned', 0, 'gone', 0, 'todo', policy.todo or '')
    touched, ring_late = true, true
  end

  -- Those who wait for a version read it here. If a publication stopped before this, its repeat adds it.
  local function tell_version()
    local told = redis.call('XREVRANGE', at('versions'), '+', '-', 'COUNT', 1)[1]
    if told and told[2][2] == tostring(version) and told[2][4] == tostring(policy.line) then return end
    redis.call('XADD', at('versions'), 'MAXLEN', '~', 64, '*', 'version', VERSION, 'line', policy.line)
  end

  local function forget_trained()
    if redis.call('HLEN', at('trained')) <= 2 * MOST_VERSIONS then return end
    for _, under in ipairs(redis.call('HKEYS', at('trained'))) do
      if tonumber(under) < version - MOST_VERSIONS then redis.call('HDEL', at('trained'), under) end
    end
  end

  wake()
  redis.call('HSET', at('policy'), 'trainer', OWNER)
  if not last then
    begin(true, 'adopt_open')
  elseif version > last then
    begin(false, 'ripen_slots')
    forget_trained()
    for _, target in ipairs(redis.call('HKEYS', at('targets'))) do
      if tonumber(target) < version then redis.call('HDEL', at('targets'), target) end
    end
  elseif version < last or took_over then
    begin(true, 'line')
  end
  tell_version()
  -- Before a trainer says what it saved, that is where it began.
  policy.saved = math.min(tonumber(SAVED) or policy.saved or version, version)
  redis.call('HSET', at('policy'), 'saved', policy.saved)
  do_chores()
  return {1, policy.version, policy.line, policy.epoch, progress()}
end)
