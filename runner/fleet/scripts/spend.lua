-- Add what a call has used of a rate, by the clock of Redis: what is used within a step is one number.
--
-- KEYS what was used, by when its step began
-- ARGV 1 how much, 2 window in ms, 3 step in ms
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local step = tonumber(ARGV[3])
local began = string.format('%.0f', now - now % step)
for _, key in ipairs(KEYS) do
  redis.call('HINCRBYFLOAT', key, began, ARGV[1])
  redis.call('PEXPIRE', key, ARGV[2] + step)
end
return 1
