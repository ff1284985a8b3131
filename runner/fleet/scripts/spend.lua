-- Add what a call has used of a rate, by the clock of Redis.
--
-- KEYS what was used
-- ARGV 1 how much, 2 window in ms, 3 what tells this from others
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for _, key in ipairs(KEYS) do
  redis.call('ZADD', key, now, ARGV[1] .. ':' .. ARGV[3])
  redis.call('PEXPIRE', key, ARGV[2])
end
return 1
