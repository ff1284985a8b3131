-- Give back the places of a call, and tell hosts that wait for one.
--
-- KEYS 1 the call, 2 hosts that wait for room, then the sets that it is in
-- ARGV 1 call, 2 whether it is over, 3 the channel on which hosts hear that there is room
-- Returns 1.
if ARGV[2] == '1' then redis.call('DEL', KEYS[1]) end
for index = 3, #KEYS do
  redis.call('ZREM', KEYS[index], ARGV[1])
end
if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('PUBLISH', ARGV[3], '') end
return 1
