-- no_policy.lua: a task without versions: nobody has published one.
-- include: task.lua
--
-- The scripts on an item's path have two forms. The full one serves every task. The plain one has no line about
-- policies, slots and ages: it is the full one as that runs if `policy` is nil. Once a trainer has published,
-- it changes nothing and the reply is an error: the process sends its command again in the full form, and keeps to that.
if redis.call('HEXISTS', at('policy'), 'version') == 1 then return redis.error_reply('PUBLISHED ' .. ROOT) end
local policy
