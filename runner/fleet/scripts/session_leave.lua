-- Note that a use of a session is over: from now on the session is idle, if no other one goes on.
--
-- KEYS 1 all sessions, by when each was last used, 2 its uses
-- ARGV 1 the session, 2 the use
local clock = redis.call('TIME')
redis.call('ZADD', KEYS[1], clock[1] * 1000 + math.floor(clock[2] / 1000), ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[2])
return 1
