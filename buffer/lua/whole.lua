-- whole.lua: what a script of a task changes and counts is saved, also if it stops at an error.
-- include: task.lua
-- include: no_policy.lua or policy.lua if full
local save_seen -- the figures of what was written; meta_info.lua has them
local unplaced -- a new group while it is written, and in no index yet: else it would stay for good

-- Ids that the next batch tells: while nobody takes one, as many as are remembered of closed groups.
local reports = {}

local function save_reports()
  while #reports > 0 do
    local page, rest = math.min(#reports, 1000), {}
    local over = redis.call('RPUSH', at('unreported'), unpack(reports, 1, page)) - set.done_max
    for i = page + 1, #reports do rest[#rest + 1] = reports[i] end
    reports = rest
    if over > 0 then redis.call('LTRIM', at('unreported'), over, -1) end
  end
end

local function save()
  save_sums()
  save_reports()
  if save_seen then save_seen() end
  if not policy then return end
  if touched then call_waiters() end
  if ring_late and redis.call('EXISTS', at('ready')) == 1 then ring() end
end

local function add_owed()
  local debt = cjson.decode(owed)
  owed = nil
  for part, fields in pairs(debt.sums) do
    for field, by in pairs(fields) do add(part, field, by) end
  end
  for _, id in ipairs(debt.reports) do reports[#reports + 1] = id end
end

-- The last script could not write all that it had counted. This one does it first, so that it sees it.
local function pay()
  if not owed or not pcall(redis.call, 'HDEL', at('state'), 'owed') then return end
  add_owed()
  if policy and sums.policy then policy.taken = policy.taken + sums.policy.taken end
  pcall(save_sums)
end

-- What is counted and not written, since a command is refused, is kept for the next script: of ids as many as
-- `unreported` would hold.
local function owe()
  if owed then add_owed() end
  for part, fields in pairs(sums) do
    if not next(fields) then sums[part] = nil end
  end
  local newest = {}
  for i = math.max(1, #reports - set.done_max + 1), #reports do newest[#newest + 1] = reports[i] end
  if next(sums) or #newest > 0 then
    redis.call('HSET', at('state'), 'owed', cjson.encode({sums = sums, reports = newest}))
  end
end

-- The reply of a script. If it stops at an error, what it counted so far is saved all the same: that is
-- what it had changed by then. Each change is counted right after the command that makes it so.
local function whole(body)
  pay()
  local done, reply = pcall(body)
  if unplaced then
    for _, key in ipairs({group_of(unplaced), meta_of(unplaced)}) do pcall(redis.call, 'PEXPIRE', key, set.open_ttl_ms) end
  end
  local saved, why = pcall(save)
  if not saved then pcall(owe) end -- may that not be written either, the first error says why
  if done and saved then return reply end
  if done then reply = why end
  return type(reply) == 'table' and reply or redis.error_reply(tostring(reply)) -- raised again it would lose its code
end
