-- state.lua: what every script of a gate begins with: its clock, its settings, its room, its leases.
-- It needs the keys gate leases holders queue waiters alive, and the arguments limit, rate, burst
-- ('' for none, and behind it the amounts: `4 tokens=1700/170`) and process.
--
-- The scripts on a permit's path have two forms. The plain one has no line about costs, shares or limits that
-- adapt: see `plain_terms.lua`. The full one serves every gate.
local call, format = redis.call, string.format
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function read()
  return call('HMGET', GATE, 'limit', 'rate', 'burst', 'paused', 'tokens', 'refilled',
    'fence', 'granted', 'released', 'ticket', 'head', 'head_wakes', 'made', 'more')
end

local fields = read()
-- include: plain_terms.lua or full_terms.lua if full
-- '' is no limit, and no rate. What is no number, by somebody's hand, lets nobody in.
local limit = fields[1] == '' and math.huge or tonumber(fields[1])
local rate = (fields[2] or '') == '' and 0 or tonumber(fields[2])
local gate = {
  limit = rate and limit or 0,
  rate = rate or 0,
  burst = tonumber(fields[3]) or 0,
  tokens = tonumber(fields[5]) or 0,
  paused = (fields[4] or '0') ~= '0', -- `1`: by hand
  fence = fields[7] or 0,
  granted = 0,
  released = 0,
  ticket = tonumber(fields[10]) or 0,
  made = fields[13] or 0,
}
-- include: refill_and_room.lua

-- include: let_few_through.lua if full
local LANE = 8796093022208 -- 2^43 tickets to a lane

local function count(what, by)
  if by > 0 then call('HINCRBY', GATE, what, by) end
end

-- include: adapt.lua if full
-- include: weigh.lua if full
-- include: next_share.lua if full
-- include: full_fenced_release.lua if full

local function free(ids)
  if #ids == 0 then return end
  if gate.weighing then gate.weighing.begin_end() end -- if full
  call('HDEL', HOLDERS, unpack(ids)) -- the lease last: it ends by itself, should the script stop here
  call('ZREM', LEASES, unpack(ids))
  if gate.weighing then gate.weighing.uncharge(ids) end -- if full
end

-- Write the gate's changed fields, in one command.
local function save()
  local n, changed = 0, {}
  local function set(field, value)
    changed[n + 1], changed[n + 2], n = field, value, n + 2
  end
  if gate.rate > 0 then set('tokens', gate.tokens) set('refilled', now) end
  if gate.granted > 0 then set('fence', gate.fence) set('granted', (fields[8] or 0) + gate.granted) end
  if gate.granted + gate.released > 0 then set('released', (fields[9] or 0) + gate.released) end
  if gate.ticket > (tonumber(fields[10]) or 0) then set('ticket', gate.ticket) end
  if gate.head then set('head', gate.head) set('head_wakes', gate.head_wakes) end
  save_kind(set) -- if full
  if n > 0 then call('HSET', GATE, unpack(changed)) end
end

-- include: expire.lua

local function fence_in(holder) return holder and string.match(holder, '^%d+') end
local function fence_of(id) return fence_in(call('HGET', HOLDERS, id)) end
