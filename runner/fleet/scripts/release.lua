-- Give back the places of a call, and tell hosts that wait for one.
--
-- KEYS 1 the call, 2 what is there while a host waits, 3 users that wait, 4 at which node those wait that have one,
--      then the sets that the call is in
-- ARGV 1 whether it is over, 2 the channel on which hosts hear what has become free, 3 the node of the call or '', then
--      what the call is called in each set
-- Publishes the users whose turn it is, as JSON [[user, …], [set, …]], with the sets that the call has left.
-- Returns 1.
local TURNS = 4
local FIRST_SET, FIRST_MEMBER = 5, 4

if ARGV[1] == '1' then redis.call('DEL', KEYS[1]) end
local left = {}
for index = FIRST_SET, #KEYS do
  redis.call('ZREM', KEYS[index], ARGV[FIRST_MEMBER + index - FIRST_SET])
  left[#left + 1] = cjson.encode(KEYS[index])
end
if redis.call('EXISTS', KEYS[2]) == 0 then return 1 end
-- More than one: who stays with a node that is full, or waits at a host that is gone, lets the next one go first.
local users = {}
for _, user in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  if #users == TURNS then break end
  local at = redis.call('HGET', KEYS[4], user)
  if not at or at == ARGV[3] then users[#users + 1] = cjson.encode(user) end
end
-- Joined by hand: an empty table has no kind in Lua, and would be an object.
redis.call('PUBLISH', ARGV[2], '[[' .. table.concat(users, ',') .. '],[' .. table.concat(left, ',') .. ']]')
return 1
