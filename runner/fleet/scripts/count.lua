-- Count one call for each of several limits or, where one is reached, for none.
--
-- KEYS one for each limit: a sorted set of calls by time
-- ARGV 1 window in ms, 2 an id of this call, then for each limit the calls that it allows
-- Returns {0}, or {which limit, from 1, in how many ms there is room}.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local window, member = tonumber(ARGV[1]), ARGV[2]

local which, after = 0, 0
for index = 1, #KEYS do
  local most = tonumber(ARGV[index + 2])
  redis.call('ZREMRANGEBYSCORE', KEYS[index], '-inf', now - window)
  local found = redis.call('ZRANGE', KEYS[index], -most, -most, 'WITHSCORES')
  if found[2] then
    local wait = tonumber(found[2]) + window - now
    if wait > after then which, after = index, wait end
  end
end
if which > 0 then return {which, math.ceil(after)} end
for index = 1, #KEYS do
  redis.call('ZADD', KEYS[index], now, member)
  redis.call('PEXPIRE', KEYS[index], window)
end
return {0}
