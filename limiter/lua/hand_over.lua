-- hand_over.lua: what came free goes to those who wait, in their order.
-- include: line.lua

-- Move the first living waiters into the leases, as far as there is room: at most a
-- thousand a call, dead ones included, and one message to each process. The caller's own
-- grants, as `id fence id fence …`, go home with the reply.
local own = ''
local function hand_over()
  local left, letters, dropped = 1000, {}, 0
  while left > 0 and room() > 0 do
    local ids = call('ZRANGE', QUEUE, 0, math.min(room(), left) - 1)
    front = ids[1] or false
    if not front then break end
    left = left - #ids
    local records = call('HMGET', WAITERS, unpack(ids))
    leave(ids)
    for i, id in ipairs(ids) do
      local process, term = read_waiter(records[i])
      if process and alive(process) then
        local fence = grant(id, process, term)
        letters[process] = format('%s%s %.0f ', letters[process] or '', id, fence)
      else
        dropped = dropped + 1
      end
    end
  end
  write_grants()
  own, letters[PROCESS] = letters[PROCESS] or '', nil
  for process, grants in pairs(letters) do mail(process, 'grants', grants) end
  count('dropped', dropped)
end
