-- paused_by.lua: at the end of a reply, the state of the breaker that has paused a queue, or the gate of its
-- workers, and what it has counted; else '' and ''. It needs the key jobs, `call` and `reply`.
local function paused_by()
  local here = call('HMGET', 'penstock:work:{' .. string.sub(JOBS, 10) .. '}', 'paused', 'paused_why', 'breaker')
  if here[1] and here[1] ~= '1' then return here[1], here[2] or '' end
  if not here[3] then return '', '' end
  local gate = call('HMGET', here[3], 'paused', 'paused_why')
  if gate[1] and #gate[1] > 1 then return gate[1], gate[2] or '' end
  return '', ''
end
reply[#reply + 1], reply[#reply + 2] = paused_by()
