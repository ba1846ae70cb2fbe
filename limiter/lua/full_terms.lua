-- full_terms.lua: a gate of any kind as it is found, or made.
-- include: state.lua
--
-- A gate that is new, or was lost with the server's data, is made with what its
-- caller was constructed with, in one command. Its bucket starts empty: a burst is earned, not given.
if not fields[1] then
  local burst, amounts = string.match(BURST, '^(%d*) ?(.*)$')
  local terms, names = {}, {}
  local function set(field, value) terms[#terms + 1], terms[#terms + 2] = field, value end
  for _, adapts in ipairs({ 'limit', 'rate' }) do
    local text = adapts == 'limit' and LIMIT or RATE
    local start, min, max = string.match(text, '^(%S+) (%S+) (%S+)$')
    set(adapts, start or text)
    if start then
      set('more', 1) set('adapts', adapts) set('exact', start)
      set('shown', start) -- the release before takes another limit than this for somebody's own, and pins it
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
