-- finalize.lua: put a frozen session's item into the buffer, and forget its calls. What stays
-- answers a repeat.
-- KEYS   root
-- ARGV   sid snap reward(tells one end from another) stays_ms answer, then its item as in write.lua
-- REPLY  {unknown} | {moved} (its log changed since it was read) | {differs} | {final, answer} |
--        {full, wait_ms} | {unpublished} | {foreign} | {put, outcome as in put_item.lua}
-- include: buffer:store.lua
-- include: session.lua
return whole(function()
  local s = redis.call('HMGET', of(SID, ''), 'state', 'snap', 'reward', 'answer', 'bytes')
  if not s[1] then return {'unknown'} end
  local function tidy()
    redis.call('PEXPIRE', of(SID, ''), STAYS_MS)
    redis.call('UNLINK', of(SID, ':calls'), of(SID, ':index'), of(SID, ':states'), of(SID, ':open'),
      of(SID, ':bell:drained'))
    redis.call('ZREM', at('sessions'), SID)
    if redis.call('HDEL', of(SID, ''), 'bytes') == 1 then count('session_bytes', -s[5]) end
  end

  if s[1] == 'final' then
    tidy() -- a script may have stopped before it was
    if s[3] ~= REWARD then return {'differs'} end
    return {'final', s[4]}
  end
  if s[1] ~= 'frozen' or (s[2] or '0') ~= SNAP then return {'moved'} end
  wake()
  do_due(4)
  store(ARGV, REST)
  count_stored()
  local code = codes[1]
  if code == 5 then return {'full', next_due()} end
  if code == 7 then return {'unpublished'} end
  if code == 8 then return {'foreign'} end
  redis.call('HSET', of(SID, ''), 'state', 'final', 'reward', REWARD, 'answer', code .. ANSWER)
  tidy()
  return {'put', code}
end)
