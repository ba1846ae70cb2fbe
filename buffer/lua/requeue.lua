-- requeue.lua: a quarantined or discarded group that is still kept becomes ready again.
-- KEYS   root
-- ARGV   gid
-- REPLY  1, or 0 when nothing of it is kept
-- include: life.lua
-- include: idle.lua
local gid = ARGV[1]
local meta = redis.call('HMGET', meta_of(gid), 'state', 'bytes', 'why')
local kept = {quarantined = true, invalid = true, expired = true, consumed = true}
if not kept[meta[1]] or redis.call('EXISTS', group_of(gid)) == 0 then return 0 end
wake()
for _, index in ipairs({'kept', 'delivered', 'discarded'}) do redis.call('ZREM', at(index), gid) end
redis.call('HDEL', at('quarantine'), gid)
redis.call('HDEL', meta_of(gid), 'closed')
count('bytes', tonumber(meta[2] or '0'))
count('requeued', 1)
make_ready(gid, meta[1] == 'quarantined' and (meta[3] or 'count') or 'judged')
return 1
