-- records.lua: what every script of a sandbox registry begins with: its clock, its records, its fences.
-- It needs the keys registry, leases, permits and sessions. Times are microseconds of the server's
-- clock. Only a caller that knows a record's fence changes it; a new fence shuts out the last owner.
local call, format = redis.call, string.format
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function box(name) return REGISTRY .. ':box:' .. name end

local function number(value) return format('%d', value) end

local function count(what, by)
  call('HSETNX', REGISTRY, 'made', number(now))
  call('HSET', REGISTRY, 'used', number(now))
  call('HINCRBY', REGISTRY, what, by or 1)
end

local function next_fence()
  local fence = number(math.max((tonumber(call('HGET', REGISTRY, 'fence')) or 0) + 1, now))
  call('HSET', REGISTRY, 'fence', fence)
  return fence
end

local function holds(name, fence) return call('HGET', box(name), 'fence') == fence end

-- Leases are only ever made longer: of several who use a session, the last to leave counts.
local function keep(name, lease)
  local stands = tonumber(call('ZSCORE', LEASES, name) or 0)
  call('ZADD', LEASES, number(math.max(stands, now + lease)), name)
end

-- The lease goes last: until then a reaper finds what is left.
local function drop(name)
  call('HDEL', PERMITS, name)
  call('DEL', box(name))
  call('ZREM', LEASES, name)
end

-- A record in a reply: four parts.
local function row_of(name, lease)
  return { name, number(lease), call('HGETALL', box(name)), call('HGET', PERMITS, name) or '' }
end
