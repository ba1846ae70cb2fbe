-- settle.lua: what became of the groups of a batch that are not delivered.
-- KEYS   root
-- ARGV   receipt, then for each such group: gid verdict (invalid | quarantined | unasked) reason
-- REPLY  how many were settled; 0 when the batch is no longer leased
-- include: give_back.lua
local batch = at('batch:' .. ARGV[1])
if redis.call('HGET', batch, 'state') ~= 'leased' then return 0 end
local settled = 0
for i = 2, #ARGV, 3 do
  local gid = ARGV[i]
  if redis.call('LREM', batch .. ':groups', 1, gid) == 1 then
    if ARGV[i + 1] == 'unasked' then
      put_back(gid)
    elseif ARGV[i + 1] == 'invalid' then
      discard(gid, 'invalid')
    else
      quarantine(gid, ARGV[i + 2])
    end
    settled = settled + 1
  end
end
if redis.call('EXISTS', at('ready')) == 1 then ring() end
return settled
