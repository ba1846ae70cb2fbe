-- marks.lua: a request with a cost, or a share, has its gate count costs, or take turns, from now on.
if JOIN % 4 > 1 then redis.call('HSET', GATE, 'more', 1, 'weighs', 1) end
if JOIN % 8 > 3 then redis.call('HSET', GATE, 'more', 1, 'shares', 1) end
