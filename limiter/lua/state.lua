-- state.lua: what every script of a gate begins with: its clock, its settings, its room, its leases.
-- It needs the keys gate leases holders queue waiters alive, and the arguments limit, rate, burst
-- ('' for none, and behind it the amounts: `4 tokens=1700/170`) and process.
local call, format = redis.call, string.format
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function read()
  return call('HMGET', GATE, 'limit', 'rate', 'burst', 'paused', 'tokens', 'refilled',
    'fence', 'granted', 'released', 'ticket', 'head', 'head_wakes', 'made', 'more')
end

local fields = read()
if not fields[1] then
  -- A gate that is new, or was lost with the server's data, is made with what its
  -- caller was constructed with, in one command. Its bucket starts empty: a burst is earned, not given.
  local burst, amounts = string.match(BURST, '^(%d*) ?(.*)$')
  local terms, names = {}, {}
  local function set(field, value) terms[#terms + 1], terms[#terms + 2] = field, value end
  for _, adapts in ipairs({ 'limit', 'rate' }) do
    local text = adapts == 'limit' and LIMIT or RATE
    local start, min, max = string.match(text, '^(%S+) (%S+) (%S+)$')
    set(adapts, start or text)
    if start then
      set('more', 1) set('adapts', adapts) set('exact', start) set('shown', start)
      set('start', start) set('min', min) set('max', max)
      if adapts == 'rate' then burst = math.max(1, math.ceil(start / 10)) end
    end
  end
  set('burst', burst) set('tokens', 0) set('refilled', now) set('made', now)
  for name, rate, most in string.gmatch(amounts, '([%w_]+)=(%S+)/(%d+)') do
    names[#names + 1] = name
    set('rate:' .. name, rate) set('burst:' .. name, most)
  end
  if names[1] then set('more', 1) set('weighs', 1) set('amounts', table.concat(names, ' ')) end
  call('HSET', GATE, unpack(terms))
  fields = read()
end
-- What most gates do not have: nil of those.
local more = fields[14] and call('HMGET', GATE, 'adapts', 'weighs', 'shares', 'lanes', 'clock:0')
-- '' is no limit, and no rate. What is no number, by somebody's hand, lets nobody in.
local limit = fields[1] == '' and math.huge or tonumber(fields[1])
local rate = (fields[2] or '') == '' and 0 or tonumber(fields[2])
local gate = {
  limit = rate and limit or 0,
  rate = rate or 0,
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

local function count(what, by)
  if by > 0 then call('HINCRBY', GATE, what, by) end
end

-- include: step.lua
-- include: weigh.lua
-- include: shares.lua

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
  if steering then steering.save(set) end
  if gate.weighing then gate.weighing.save(set) end
  if gate.sharing then gate.sharing.save(set) end
  if n > 0 then call('HSET', GATE, unpack(changed)) end
end

local function free(ids)
  if #ids == 0 then return end
  call('HDEL', HOLDERS, unpack(ids)) -- the lease last: it ends by itself, should the script stop here
  call('ZREM', LEASES, unpack(ids))
end
if gate.weighing then free = gate.weighing.freeing(free) end

-- At most a thousand, to keep the call short; the rest counts as held until the next call.
local function expire()
  gate.live = call('ZCARD', LEASES)
  if gate.live == 0 then return end
  local dead = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 1000)
  free(dead)
  count('expired', #dead)
  gate.live = gate.live - #dead
  if gate.weighing then gate.live = gate.live + gate.weighing.extra end
end

local function fence_in(holder) return holder and string.match(holder, '^%d+') end
local function fence_of(id) return fence_in(call('HGET', HOLDERS, id)) end

-- Give back permits, each an id and its fence. A permit that expired and was granted again
-- under the same id has another fence, and stays. A report may follow the fence, after a space, and
-- `+<us>` if it stays for so long, since what it was for may still run. Then comes what is settled;
-- and of one that was waited for `|lane|share|its cost|what it cost in the end`.
local function release(permits)
  local ids, fences, held = {}, {}, {}
  for id, fence in permits do ids[#ids + 1], fences[#ids + 1] = id, fence end
  if #ids == 0 then return end
  for n, holder in ipairs(call('HMGET', HOLDERS, unpack(ids))) do
    local fence = fence_in(holder)
    if fence and (fence == fences[n] or fence == fence_in(fences[n])) then
      local stays = fence ~= fences[n] and string.match(fences[n], ' %+(%d+)')
      if stays then call('ZADD', LEASES, now + stays, ids[n]) else held[#held + 1] = ids[n] end
      if steering then
        steering.hear(fence, string.match(fences[n], ' (%S*)') or '', gate.weighing and gate.weighing.held(ids[n]))
      end
      if gate.weighing then gate.weighing.settle(fences[n]) end
      if gate.weighing and gate.sharing then gate.sharing.settle(fences[n]) end
    elseif not fence and call('ZSCORE', LEASES, ids[n]) then -- a script stopped as it gave this one back
      held[#held + 1] = ids[n]
    end
  end
  free(held)
  gate.released = gate.released + #held
end
