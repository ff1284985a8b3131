-- Keep the users of a host among those that wait, and say whose turn it is.
--
-- KEYS 1 users that wait, 2 when each last asked, 3 what is there while a host waits, 4 at which node those wait
--      that have one
-- ARGV 1 for how long that is to hold in ms, then the users with calls that wait at this host
-- Returns the users whose turn it is at any node, whichever host they wait at, and those of this host that Redis knows nothing of.
local TURNS = 4
local holds_ms = tonumber(ARGV[1])

-- The clock of Redis alone counts: see `place.lua`.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

redis.call('SET', KEYS[3], '1', 'PX', holds_ms)
local unknown = {}
for index = 2, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[index]) then
    redis.call('ZADD', KEYS[2], now + holds_ms, ARGV[index])
  else
    unknown[#unknown + 1] = ARGV[index]
  end
end
redis.call('PEXPIRE', KEYS[1], holds_ms * 2)
redis.call('PEXPIRE', KEYS[2], holds_ms * 2)
redis.call('PEXPIRE', KEYS[4], holds_ms * 2)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('ZREM', KEYS[2], gone)
  redis.call('ZREM', KEYS[1], gone)
  redis.call('HDEL', KEYS[4], gone)
end
local users, taken = {}, {}
for _, user in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local at = redis.call('HGET', KEYS[4], user) or ''
  taken[at] = (taken[at] or 0) + 1
  if taken[at] <= TURNS then users[#users + 1] = user end
end
return {users, unknown}
