-- begin.lua: a call begins; or its request was answered before, or is being answered.
-- KEYS   root
-- ARGV   sid fence lease_ms digest retry(1 or 0) key waited live most_bytes, then for each hash: hash
-- REPLY  {unknown} | {over, state} | {spent, what, limit} | {reused} | {join, call, ms} |
--        {replay, call, record, state, answer} |
--        {fresh, call, clock, version, the call that it is a retry of or 0, then per hash:
--         its call and that call's fence, `first`, or empty}
-- include: clock.lua
-- include: session.lua
-- include: epoch.lua
local index, calls = of(SID, ':index'), of(SID, ':calls')
local s = redis.call('HMGET', of(SID, ''), 'state', 'seq', 'until', 'most_tokens', 'tokens', 'most_turns', 'bytes', 'epoch', 'most_seconds', 'broken')
if not s[1] then return {'unknown'} end
local seq = tonumber(s[2])

local function fresh(id, retry)
  local version = redis.call('HGET', ROOT .. ':policy', 'version') or ''
  local reply, fields = {'fresh', id, clock, version, retry}, {}
  for hash in each_hash() do fields[#fields + 1] = 'h' .. hash end
  if #fields == 0 then return reply end
  local hits, parent = redis.call('HMGET', index, unpack(fields)), ''
  for i, hit in ipairs(hits) do
    local found = hit
    if not found and redis.call('HEXISTS', index, 'f' .. string.sub(fields[i], 2)) == 1 then found = 'first' end
    reply[#reply + 1] = found or ''
  end
  -- Its last answer is unknown here. If the server has begun another life since, it may have lost it,
  -- be it the session's first.
  if (reply[6] == '' or seq == 0 and reply[6]) and epoch() ~= s[8] then redis.call('HSET', of(SID, ''), 'hole', 1) end
  return reply
end

-- A key says which requests are one. Without it, it is an equal body and a sign of a retry.
local earlier
if KEY ~= '' then
  local known = redis.call('HGET', index, 'k' .. KEY)
  if known and string.sub(known, 1, 16) ~= DIGEST then return {'reused'} end
  earlier = known and string.sub(known, 17)
else
  earlier = redis.call('HGET', index, 'd' .. DIGEST)
end
local retry = earlier and (KEY ~= '' or RETRY == '1')
if earlier then
  local state = state_of(SID, earlier)
  local lease = tonumber(redis.call('ZSCORE', of(SID, ':open'), earlier) or '0')
  if BROKEN[state] then
    local fence, was_retry = string.match(redis.call('HGET', calls, earlier), '^o(%x+) %d* (%d+)')
    if fence == FENCE then return fresh(earlier, was_retry) end -- this call, asked twice
    if retry and lease > clock then
      redis.call('HINCRBY', index, 'j' .. earlier, 1)
      return {'join', earlier, lease - clock}
    end
    if retry then give_up(SID, earlier, BROKEN[state]) end
  elseif DONE[state] then
    local unsaid = state == '1' and not retry
    if unsaid and lease > clock and WAITED == '0' then -- its process may be about to say what it sent
      redis.call('HINCRBY', index, 'j' .. earlier, 1)
      return {'join', earlier, math.min(lease - clock, 400)}
    end
    if retry or state == '3' or (unsaid and lease <= clock) then
      return {'replay', earlier, redis.call('HGET', calls, earlier), state,
        redis.call('GET', of(SID, ':answer:' .. earlier)) or ''}
    end
  end
end

if s[1] ~= 'live' then return {'over', s[1]} end -- what was answered before is answered until the end

local function spent(what, used, limit, said)
  limit = tonumber(limit or '0')
  if limit > 0 and tonumber(used) >= limit then return {'spent', what, said or limit} end
end
local over = spent('tokens', s[5], s[4]) or spent('turns', seq - (s[10] or 0), s[6]) or spent('seconds', clock, s[3], s[9])
  or spent('bytes', s[7], MOST_BYTES)
if over then return over end

local id = redis.call('HINCRBY', of(SID, ''), 'seq', 1)
if id == 1 then
  for hash in each_hash() do redis.call('HSET', index, 'f' .. hash, '') end
end
local reply, parent = fresh(id, retry and earlier or '0'), ''
for i = 6, #reply do
  parent = string.match(reply[i], '^%d+') or ''
  if parent ~= '' then break end
end
redis.call('HSET', calls, id, string.format('o%s %s %s %d ', FENCE, parent, reply[5], clock) .. DIGEST)
set_state(SID, id, LIVE == '1' and 'O' or 'o')
redis.call('ZADD', of(SID, ':open'), clock + LEASE_MS, id)
redis.call('HSET', index, 'd' .. DIGEST, id)
if KEY ~= '' then redis.call('HSET', index, 'k' .. KEY, DIGEST .. id) end
redis.call('HSET', of(SID, ''), 't', clock)
redis.call('ZADD', ROOT .. ':sessions', clock + LEASE_MS, SID)
return reply
