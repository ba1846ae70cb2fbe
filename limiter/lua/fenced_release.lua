-- fenced_release.lua: permits are given back by those who hold them. The fence of each is compared here: a late release
-- by a former holder has an older one, and changes nothing.
-- include: state.lua

-- Give back permits, each an id and its fence. A permit that expired and was granted again
-- under the same id has another fence, and stays. A report may follow the fence, after a space, and
-- `+<us>` if it stays for so long, since what it was for may still run. Then comes what is settled;
-- and of one that was waited for `|lane|share|its cost|what it cost in the end`. One that stays has
-- `|+` behind its holder from then on: its release may come again, and counts once.
local function release(permits)
  local ids, fences, held = {}, {}, {}
  for id, fence in permits do ids[#ids + 1], fences[#ids + 1] = id, fence end
  if #ids == 0 then return end
  for n, holder in ipairs(call('HMGET', HOLDERS, unpack(ids))) do
    local fence = fence_in(holder)
    if fence and (fence == fences[n] or fence == fence_in(fences[n])) then
      local stays = fence ~= fences[n] and string.match(fences[n], ' %+(%d+)')
      if not stays then
        held[#held + 1] = ids[n]
      elseif string.sub(holder, -2) ~= '|+' then
        call('ZADD', LEASES, now + stays, ids[n])
        call('HSET', HOLDERS, ids[n], holder .. '|+')
      end
      if string.sub(holder, -2) ~= '|+' then read_receipt(ids[n], fence, fences[n]) end -- if full
    elseif not fence and call('ZSCORE', LEASES, ids[n]) then -- a script stopped as it gave this one back
      held[#held + 1] = ids[n]
    end
  end
  free(held)
  gate.released = gate.released + #held
end
