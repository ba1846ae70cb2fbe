-- seal.lua: complete a batch: the discarded ids it reports and the figures it carries.
-- KEYS   root
-- ARGV   receipt size raw_read(of `raw`, since the run began) custom_meta_info masked(tokens), then for each age: age groups
-- REPLY  {sealed, discarded_json, items, groups, n, sum, m2, min, max} (figures); without figures, and sealed
--        is 0, for a batch that is empty or lost groups with its lease: it is undone, the rest stays for the
--        next; or for one that is acknowledged already
-- include: whole.lua
local MOST_REPORTED = 1000 -- in one batch; the rest are the next one's

-- Nobody gets the batch: what it has comes back.
local function undo()
-- include: return_batch.lua
  give_back(RECEIPT, BATCH_STEP)
end

return whole(function()
  local batch = at('batch:' .. RECEIPT)
  local done = redis.call('HMGET', batch, 'state', 'figures', 'discarded')
  if done[1] == 'leased' and done[2] then -- the reply was lost: it is sent again
    local again = {1, done[3]}
    for figure in string.gmatch(done[2], '%S+') do again[#again + 1] = figure end
    return again
  end
  if done[1] ~= 'leased' then -- it ended; a repeat that comes late changes nothing of that
    if done[1] == 'returning' then undo() end
    return {0, '[]'}
  end
  local waiting = redis.call('EXISTS', batch .. ':discarded') == 0 and redis.call('LLEN', at('unreported')) or 0
  if waiting > MOST_REPORTED then
    for _ = 1, MOST_REPORTED do redis.call('LMOVE', at('unreported'), batch .. ':discarded', 'LEFT', 'RIGHT') end
  elseif waiting > 0 then
    redis.call('RENAME', at('unreported'), batch .. ':discarded')
  end
  local ids = redis.call('LRANGE', batch .. ':discarded', 0, -1)
  local told = '[' .. table.concat(ids, ',') .. ']'
  local seen = redis.call('HMGET', at('seen'), 'items', 'groups', 'n', 'sum', 'm2', 'min', 'max')
  local reply = {1, told}
  for i = 1, 7 do reply[i + 2] = seen[i] or '0' end
  local size = redis.call('LLEN', batch .. ':groups')
  if size == 0 or size ~= tonumber(SIZE) then
    undo()
    return {0, '[]'}
  end
  redis.call('HSET', batch, 'discarded', told, 'meta_info', CUSTOM_META_INFO,
    'figures', table.concat(reply, ' ', 3))
  local had = redis.call('HMGET', at('seen'), 'mark', 'cut')
  local mark, cut = tonumber(had[1] or '0'), tonumber(had[2] or '0')
  local more = math.max(0, RAW_READ - cut) -- another read may have cut some of it off
  redis.call('DEL', at('seen'))
  redis.call('LTRIM', at('raw'), more, -1)
  redis.call('HSET', at('seen'), 'mark', mark + 1, 'cut', cut + more)
  count('batches', 1)
  count('delivered', size)
  if policy then
    count('masked_tokens', tonumber(MASKED))
    for age, groups in each_age() do add('ages', age, groups) end
  end
  return reply
end)
