-- counts.lua: how many programs ended how, and how long jobs waited and took.
-- It needs `call`, `now`, `format`, and the keys work and worker.
local STEPS = { 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000 }
local totals, of_worker = {}, {}

local function add(counts, name, by) counts[name] = (counts[name] or 0) + by end

-- The names of the steps are those of worker/outcomes.py.
local function add_time(what, seconds)
  local step = '+Inf'
  for _, most in ipairs(STEPS) do
    if seconds <= most then step = format('%.12g', most) break end
  end
  add(totals, what .. ':' .. step, 1)
  add(totals, what .. '_us', math.floor(seconds * 1000000))
end

-- The word for how a program ended, which has a + behind it if its assertions ran in its process.
local function word_of(program)
  if string.sub(program, -1) == '+' then return string.sub(program, 1, -2), true end
  return program, false
end

-- `program`: how its program ended; empty for a function. `waited`: empty if unknown.
local function count_job(program, started, waited)
  local program, shares = word_of(program)
  if shares then add(totals, 'programs_shared', 1) end
  add(totals, program == '' and 'functions' or 'programs:' .. program, 1)
  if program ~= '' and program ~= 'finished' then add(of_worker, 'penstock_' .. program, 1) end
  add_time('took', math.max(0, now / 1000000 - started))
  if tonumber(waited) then add_time('waited', math.max(0, tonumber(waited))) end
end

local function write_counts()
  for name, by in pairs(totals) do call('HINCRBY', WORK, name, format('%.0f', by)) end
  if not next(of_worker) or call('EXISTS', WORKER) == 0 then return end
  for name, by in pairs(of_worker) do call('HINCRBY', WORKER, name, by) end
end
