-- leases.lua: how a permit ends, by a release or by itself, and whose it is.
-- include: save.lua

local function free(ids)
  if #ids == 0 then return end
  call('ZREM', LEASES, unpack(ids))
  call('HDEL', HOLDERS, unpack(ids))
end

-- A thousand at a time keeps one call short; what is left counts as held until the next.
local function expire()
  gate.live = call('ZCARD', LEASES)
  if gate.live == 0 then return end
  local dead = call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 1000)
  free(dead)
  count('expired', #dead)
  gate.live = gate.live - #dead
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
