-- task.lua: what every script of a task begins with: its keys, its settings and its clock.
-- `now` is Redis' time in milliseconds, less the time in which no server of the task lived.
local function at(part) return ROOT .. ':' .. part end
local function group_of(gid) return ROOT .. ':group:' .. gid end
local function meta_of(gid) return ROOT .. ':group:' .. gid .. ':meta' end

-- Decoding one field costs a third of reading some twenty.
local had = redis.call('HMGET', at('config'), 'packed', 'idle')
if not had[1] then return redis.error_reply('NOTASK ' .. ROOT) end
local set = cjson.decode(had[1])
set.idle = tonumber(had[2] or '')
local stamp = redis.call('TIME')
local noted = redis.call('HMGET', at('state'), 'paused', 'owed')
local paused, owed = tonumber(noted[1] or '0'), noted[2]
local now = stamp[1] * 1000 + math.floor(stamp[2] / 1000) - paused

-- What a script counts is written once, at its end: by key of the task, then by field.
local sums = {state = {}}

local function add(part, field, by)
  sums[part] = sums[part] or {}
  sums[part][field] = (sums[part][field] or 0) + by
end

local function count(what, by) add('state', what, by) end

-- Figures of the task added up, with what this script has yet to write of them.
local function figure(...)
  local sum = 0
  for i, stored in ipairs(redis.call('HMGET', at('state'), ...)) do
    sum = sum + tonumber(stored or '0') + (sums.state[select(i, ...)] or 0)
  end
  return sum
end

local GOES_AT_0 = {starts = true, targets = true}

-- If it stops at an error, what is written by then is in `sums` no more.
local function save_sums()
  for part, fields in pairs(sums) do
    for field, by in pairs(fields) do
      if GOES_AT_0[part] then
        local n = redis.call('HINCRBY', at(part), field, by)
        fields[field] = 0
        if n < 1 then redis.call('HDEL', at(part), field) end
      elseif by ~= 0 then
        redis.call('HINCRBY', at(part), field, by)
      end
      fields[field] = nil
    end
  end
end

-- The instance's name in a group's: all before the last colon.
local function instance_of(gid) return (string.match(gid, '^(.*):%d+$')) end

-- One token wakes one blocked reader; who finds more than it takes rings again.
local rung = false
local function ring()
  if not rung and redis.call('LLEN', at('bell')) == 0 then redis.call('RPUSH', at('bell'), '1') end
  rung = true
end
