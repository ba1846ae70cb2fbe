-- leases.lua: how a permit begins, ends, and ends by itself.
-- include: state.lua

local function free(ids)
  if #ids == 0 then return end
  call('ZREM', LEASES, unpack(ids))
  call('HDEL', HOLDERS, unpack(ids))
end

-- A thousand at a time keeps one call short; what is left counts as held until the next.
local function expire()
  local dead = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 1000)
  free(dead)
  count('expired', #dead)
  gate.live = call('ZCARD', LEASES)
end

-- Grants are gathered, and written by `write_grants` in two commands however many there
-- are: before anybody asks `fence_of`, which reads what is written.
local leases, holders = {}, {}

-- The fence only grows, also over a loss of data: no clock that ran forward repeats it.
local function grant(id, process, term)
  gate.fence = math.max(gate.fence + 1, now)
  if gate.rate > 0 then gate.tokens = gate.tokens - 1 end
  gate.live, gate.granted = gate.live + 1, gate.granted + 1
  local n = #leases
  leases[n + 1], leases[n + 2] = now + term, id
  holders[n + 1], holders[n + 2] = id, format('%.0f|%s|%.0f', gate.fence, process, now)
  return gate.fence
end

local function write_grants()
  if #leases > 0 then
    call('ZADD', LEASES, unpack(leases))
    call('HSET', HOLDERS, unpack(holders))
    leases, holders = {}, {}
  end
end

local function fence_in(holder) return holder and string.match(holder, '^%d+') end
local function fence_of(id) return fence_in(call('HGET', HOLDERS, id)) end

-- Give back what these arguments name, each an id and its fence. Fenced: a permit that
-- expired and was granted anew under the same id stays.
local function release(first, last)
  local ids, held = {}, {}
  for i = first, last, 2 do ids[#ids + 1] = ARGV[i] end
  if #ids == 0 then return end
  for n, holder in ipairs(call('HMGET', HOLDERS, unpack(ids))) do
    if fence_in(holder) == ARGV[first + 2 * n - 1] then held[#held + 1] = ids[n] end
  end
  free(held)
  gate.released = gate.released + #held
end
