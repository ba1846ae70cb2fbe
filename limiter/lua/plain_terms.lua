-- plain_terms.lua: a gate as it is found, or made, if each of its permits costs one, nobody has a share,
-- and its limit stands as it was set.
-- include: state.lua
--
-- Another kind of gate has `more` in its hash. Then nothing is changed, and the reply is `full`: the process
-- sends its commands again as the full form of these scripts, and keeps to that.
if not fields[1] then -- its bucket starts empty: a burst is earned, not given
  call('HSET', GATE, 'limit', LIMIT, 'rate', RATE, 'burst', BURST, 'tokens', 0, 'refilled', now, 'made', now)
  fields = read()
elseif fields[14] then
  return 'full'
end
