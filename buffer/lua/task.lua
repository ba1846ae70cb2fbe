-- task.lua: what every script of a task begins with: its keys, its settings and its clock.
-- `now` is Redis' time in milliseconds, less the time in which no server of the task lived.
local function at(part) return ROOT .. ':' .. part end
local function group_of(gid) return ROOT .. ':group:' .. gid end
local function meta_of(gid) return ROOT .. ':group:' .. gid .. ':meta' end

-- Decoding one field costs a third of reading some twenty. An earlier release wrote only the twenty.
local set = {}
do
  local had = redis.call('HMGET', at('config'), 'packed', 'idle')
  if had[1] then
    set = cjson.decode(had[1])
    set.idle = tonumber(had[2] or '')
  else
    local flat = redis.call('HGETALL', at('config'))
    for i = 1, #flat, 2 do set[flat[i]] = tonumber(flat[i + 1]) or flat[i + 1] end
  end
end
if not set.group_size then return redis.error_reply('NOTASK ' .. ROOT) end
local stamp = redis.call('TIME')
local paused = tonumber(redis.call('HGET', at('state'), 'paused') or '0')
local now = stamp[1] * 1000 + math.floor(stamp[2] / 1000) - paused

-- What a script counts is written once, at its end.
local counted = {}

local function count(what, by) counted[what] = (counted[what] or 0) + by end

-- It may be called again after an error: what was saved is forgotten.
local function save_counts()
  for what, by in pairs(counted) do
    if by ~= 0 then redis.call('HINCRBY', at('state'), what, by) end
    counted[what] = nil
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
