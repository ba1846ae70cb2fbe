-- ids.lua: the packed ids of a call and of those that its prompt begins with, some hundreds a step.
-- KEYS   root
-- ARGV   sid call
-- REPLY  {the call to go on with or empty, the fence of the first, then per call: keep, packed ids}
local reply, call = {'', ''}, CALL
for _ = 1, 256 do
  local record = redis.call('HGET', ROOT .. ':session:' .. SID .. ':calls', call)
  local fence, parent, keep, size, at
  if record then fence, parent, keep, size, at = string.match(record, '^d(%x+) (%d*) (%d+) %d+ (%d+) %d+\n()') end
  if not parent then return {false} end
  if call == CALL then reply[2] = fence end
  reply[#reply + 1], reply[#reply + 2] = keep, string.sub(record, at, at + size - 1)
  if parent == '' then return reply end
  call = parent
end
reply[1] = call
return reply
