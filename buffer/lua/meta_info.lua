-- meta_info.lua: what was written since the last read, for meta_info: kept as running figures
-- (Welford's), so that no read has to look at every item again.
local seen

local function load_seen()
  local f = redis.call('HMGET', at('seen'), 'items', 'groups', 'n', 'sum', 'mean', 'm2', 'min', 'max', 'mark')
  seen = {mark = f[9] or '0', min = f[7], max = f[8]} -- the two as they were written
  for i, name in ipairs({'items', 'groups', 'n', 'sum', 'mean', 'm2'}) do
    seen[name] = tonumber(f[i] or '0')
  end
end

local function see(reward)
  if not seen then load_seen() end
  seen.items = seen.items + 1
  local r = tonumber(reward)
  if not r then return end
  weigh(r)
  seen.n, seen.sum = seen.n + 1, seen.sum + r
  local off = r - seen.mean
  seen.mean = seen.mean + off / seen.n
  seen.m2 = seen.m2 + off * (r - seen.mean)
  if not seen.min or r < tonumber(seen.min) then seen.min = reward end
  if not seen.max or r > tonumber(seen.max) then seen.max = reward end
end

save_seen = function()
  if not seen then return end
  local function exact(x) return string.format('%.17g', x) end
  redis.call('HSET', at('seen'), 'items', seen.items, 'groups', seen.groups, 'n', seen.n,
    'sum', exact(seen.sum), 'mean', exact(seen.mean), 'm2', exact(seen.m2), 'mark', seen.mark)
  if seen.n > 0 then
    redis.call('HSET', at('seen'), 'min', seen.min, 'max', seen.max)
  end
end
