-- state.lua: what every script of a gate begins with: its clock, its settings, its room.
-- Included by the others, whose first arguments are limit, rate, burst ('' for none) and process.
local GATE, LEASES, HOLDERS = KEYS[1], KEYS[2], KEYS[3]
local QUEUE, WAITERS, ALIVE = KEYS[4], KEYS[5], KEYS[6]
local PROCESS = ARGV[4]
local call, format = redis.call, string.format
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function read()
  return call('HMGET', GATE, 'limit', 'rate', 'burst', 'paused', 'tokens', 'refilled',
    'fence', 'granted', 'released', 'ticket', 'head', 'head_wakes', 'made')
end

local fields = read()
if not fields[1] then
  -- A gate that is new, or was lost with the server's data, is made with what its
  -- caller was constructed with. Its bucket starts empty: a burst is earned, not given.
  call('HSET', GATE, 'limit', ARGV[1], 'rate', ARGV[2], 'burst', ARGV[3], 'tokens', 0, 'refilled', now, 'made', now)
  fields = read()
end
local gate = {
  limit = tonumber(fields[1]) or math.huge,
  rate = tonumber(fields[2]) or 0,
  burst = tonumber(fields[3]) or 0,
  tokens = tonumber(fields[5]) or 0,
  paused = fields[4] == '1',
  fence = fields[7] or 0,
  granted = 0,
  released = 0,
  ticket = tonumber(fields[10]) or 0,
  made = fields[13] or 0,
}
if gate.rate > 0 then
  local passed = math.max(0, now - (fields[6] or now))
  gate.tokens = math.min(gate.burst, gate.tokens + passed * gate.rate / 1000000)
end

-- How many permits may be granted at this instant. `gate.live` is set by `expire`.
local function room()
  if gate.paused then return 0 end
  local free = gate.limit - gate.live
  if gate.rate > 0 then free = math.min(free, math.floor(gate.tokens)) end
  return free
end
