-- epoch.lua: which life of the server this is. After another one, what it acknowledged last may be lost.
local function epoch()
  local said = redis.pcall('INFO', 'server') -- a user may lack the right, a fake the command
  return type(said) == 'string' and string.match(said, 'run_id:(%w+)') or ''
end
