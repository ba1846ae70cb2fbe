-- with_breaker.lua: a queue with a breaker. It opens if at least `need` of the `last` programs that ended had no
-- outcome, for which nobody but us is to blame: their word is `masked`.
-- The breaker's states are in `limiter/lua/breaker.lua`.
-- KEYS   unknown
-- ARGV   need last
-- include: breaker_on_queue.lua or breaker_on_gate.lua if gated
--
-- Only an end without an outcome is written down: by its number, which is how many programs the queue has
-- counted until then. So a healthy queue pays nothing for its window, and no end is looked at twice.
local programs, counted = 0, nil -- ends of this call, and all before it

local function number_of_this()
  if not counted then
    counted = 0
    local counts = call('HMGET', WORK, 'programs:finished', 'programs:wrong', 'programs:error', 'programs:timeout',
      'programs:memory', 'programs:limit', 'programs:data', 'programs:masked')
    for _, count in ipairs(counts) do counted = counted + (tonumber(count) or 0) end
  end
  return counted + programs
end

-- The oldest of the `need` latest ends without an outcome, if this is one of them.
local function oldest_masked(number)
  call('LPUSH', UNKNOWN, number)
  call('LTRIM', UNKNOWN, 0, NEED - 1)
  return tonumber(call('LINDEX', UNKNOWN, NEED - 1) or '')
end

-- One end, of the execution `member`. `program` is its word, empty of a function and of what was stopped; `started` is in seconds, as text. Returns
-- whether it is put off: while the breaker is open, a program without an outcome is to run again, unless it
-- belongs to a session.
local function hear(program, started, member)
  local broken = standing()
  local began = broken and math.floor(started * 1000000 + 0.5)
  if program == '' then
    if broken and is_out(member) then broken.back(began) end
    return false
  end
  programs = programs + 1
  local word, _, reason, once = word_of(program)
  if word ~= 'masked' then
    if broken then broken.succeed(began, is_out(member)) end
    return false
  end
  if broken then
    broken.fail(began)
    return not once
  end
  if is_paused_by_hand() then return false end
  local number = number_of_this()
  local oldest = oldest_masked(number)
  if not oldest or oldest <= number - LAST then return false end
  trip(format('%d of the last %d programs had no outcome%s', NEED, number - oldest + 1,
    reason and reason ~= '' and ': ' .. reason or ''))
  call('DEL', UNKNOWN)
  return not once
end
