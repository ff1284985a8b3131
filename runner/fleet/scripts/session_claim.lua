-- Give the right to end a session to one host, if nobody uses it and it has been idle for long enough.
--
-- KEYS 1 all sessions, by when each was last used, 2 its uses, by when the lease of each ends, 3 what is there while
--      somebody ends it
-- ARGV 1 the session, 2 who asks, 3 for how long the right holds in ms, 4 how long it must have been idle in ms
-- Returns 1, or 0: it may not end now, or there is no such session.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local used = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not used or now - used < tonumber(ARGV[4]) then return 0 end
-- Those of a host that has died end with their leases.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
if redis.call('ZCARD', KEYS[2]) > 0 then return 0 end
return redis.call('SET', KEYS[3], ARGV[2], 'NX', 'PX', ARGV[3]) and 1 or 0
