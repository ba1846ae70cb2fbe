-- session.lua: where a session's keys are, and how its calls stand. `clock` is Redis' time in ms.
-- Two bytes stand in `states` for each call. The first: o open, O open and content leaves before
-- the commit; b broken, B broken when content may have left; done: 1 nobody knows what the client
-- has, 2 all of it, 3 not all, x two answers were committed. The second is c if a call continues it.
local clock = stamp[1] * 1000 + math.floor(stamp[2] / 1000)

local function of(sid, part) return ROOT .. ':session:' .. sid .. part end

local function state_of(sid, id)
  local at = 2 * (id - 1)
  return redis.call('GETRANGE', of(sid, ':states'), at, at)
end

local function set_state(sid, id, state) redis.call('SETRANGE', of(sid, ':states'), 2 * (id - 1), state) end

local BROKEN = {o = 'b', O = 'B'}
local DONE = {['1'] = true, ['2'] = true, ['3'] = true, x = true}

-- Those who wait for this call come back.
local function wake_joined(sid, id)
  local index = of(sid, ':index')
  local waiting = tonumber(redis.call('HGET', index, 'j' .. id) or '0')
  if waiting == 0 then return end
  local bell = of(sid, ':bell:' .. id)
  for _ = 1, math.min(waiting, 64) do redis.call('RPUSH', bell, '1') end
  redis.call('PEXPIRE', bell, 60000)
  redis.call('HDEL', index, 'j' .. id)
end

-- The last call under way has ended, or its process has said what it sent: who wants to freeze the
-- session comes back.
local function wake_drained(sid, state)
  if state ~= 'draining' then return end
  for _, id in ipairs(redis.call('ZRANGE', of(sid, ':open'), 0, 255)) do
    if BROKEN[state_of(sid, id)] then return end
  end
  redis.call('RPUSH', of(sid, ':bell:drained'), '1')
  redis.call('PEXPIRE', of(sid, ':bell:drained'), 60000)
end

-- It lives on for twice its idle time, from a quarter of that on since it was renewed last.
local function renew(sid, renewed, idle_ms)
  if clock < tonumber(renewed or '0') then return end
  for _, part in ipairs({'', ':calls', ':index', ':states', ':open'}) do
    redis.call('PEXPIRE', of(sid, part), 2 * idle_ms)
  end
  redis.call('HSET', of(sid, ''), 'renewed', clock + math.floor(idle_ms / 4))
end

-- An open call has no answer. `sent` is b or B. No budget pays for it.
local function give_up(sid, id, sent)
  set_state(sid, id, sent)
  redis.call('HINCRBY', of(sid, ''), 'broken', 1)
  redis.call('ZREM', of(sid, ':open'), id)
  wake_joined(sid, id)
end
