-- release.lua: give permits back and hand the room to the waiters.
-- KEYS   gate leases holders queue waiters alive
-- ARGV   limit rate burst process, then for each: id fence
-- REPLY  {now_us, wake_us, grants, how many were still held}
--
-- A permit that its holder has lost stays with its next one: `release` in `fenced_release.lua` compares the fences.
-- include: line.lua
-- include: fenced_release.lua
release(each())
expire()
hand_over()
return { now, settle(), own, gate.released }
