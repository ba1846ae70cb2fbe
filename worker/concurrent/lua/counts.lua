-- counts.lua: how many programs ended how, and how long jobs waited and took.
-- It needs `call`, `now`, `format`, and the keys work and worker.
local STEPS = { '0.01', '0.03', '0.1', '0.3', '1', '3', '10', '30', '100', '300', '1000' }
local totals, of_worker = {}, {}

local function add(counts, name, by) counts[name] = (counts[name] or 0) + by end

-- The names of the steps are those of worker/outcomes.py.
local function add_time(what, seconds)
  local step = '+Inf'
  for _, most in ipairs(STEPS) do
    if seconds <= tonumber(most) then step = most break end
  end
  add(totals, what .. ':' .. step, 1)
  add(totals, what .. '_us', math.floor(seconds * 1000000))
end

-- The word for how a program ended, which has a + behind it if its assertions ran in its process, and
-- if it is masked a | and why, behind a ! if it must not run again.
local function word_of(program)
  local word, shares, once, bar, why = string.match(program, '^([^+!|]*)(%+?)(!?)(|?)(.*)$')
  return word, shares == '+', bar == '|' and why or nil, once == '!'
end

-- Of the programs that were masked lately: how many jobs had finished by then, as the queue counts them.
-- So a reader knows how many of the last 64 they are. Of a queue without masked programs nothing is written.
local RECENT = 64
local counted, masked, masked_why = 0, {}, ''

local function note_masked()
  local finished, key, marks = tonumber(call('HGET', WORK, 'finished') or 0), WORK .. ':masked', {}
  for mark in string.gmatch(call('HGET', key, 'marks') or '', '%d+') do
    if tonumber(mark) > finished - RECENT then marks[#marks + 1] = mark end
  end
  for _, at in ipairs(masked) do marks[#marks + 1] = format('%d', finished - counted + at) end
  call('HSET', key, 'marks', table.concat(marks, ' ', math.max(1, #marks - RECENT + 1)),
    'at', format('%d', now), 'why', masked_why)
end

-- `program`: how its program ended; empty for a function. `waited`: empty if unknown.
local function count_job(program, started, waited)
  local program, shares, why = word_of(program)
  counted = counted + 1
  if why then masked[#masked + 1], masked_why = counted, why end
  if shares then add(totals, 'programs_shared', 1) end
  add(totals, program == '' and 'functions' or 'programs:' .. program, 1)
  if program ~= '' and program ~= 'finished' then add(of_worker, 'penstock_' .. program, 1) end
  add_time('took', math.max(0, now / 1000000 - started))
  if tonumber(waited) then add_time('waited', math.max(0, tonumber(waited))) end
end

-- One command reads the figures of a hash and one writes them, however many they are.
local function add_to(key, figures)
  local names, written = {}, {}
  for name in pairs(figures) do names[#names + 1] = name end
  if #names == 0 then return end
  for n, known in ipairs(call('HMGET', key, unpack(names))) do
    local sum = (tonumber(known or 0) or 0) + figures[names[n]]
    written[2 * n - 1], written[2 * n] = names[n], sum % 1 == 0 and sum or format('%.6f', sum)
  end
  call('HSET', key, unpack(written))
end

local function write_counts()
  totals.masked = totals['programs:masked']
  add_to(WORK, totals)
  if #masked > 0 then note_masked() end
  if next(of_worker) and call('EXISTS', WORKER) == 1 then add_to(WORKER, of_worker) end
end
