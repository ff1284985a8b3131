-- Note that somebody uses a session, unless it is being ended.
--
-- KEYS 1 all sessions, by when each was last used, 2 its uses, by when the lease of each ends, 3 what is there while
--      somebody ends it
-- ARGV 1 the session, 2 the use, 3 lease in ms
-- Returns 1, or 0: it is being ended.
if redis.call('EXISTS', KEYS[3]) == 1 then return 0 end
-- The clock of Redis alone counts: see `place.lua`.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
