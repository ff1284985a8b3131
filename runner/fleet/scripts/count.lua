-- Count one call for each of several rates or, where one is reached, for none.
--
-- KEYS one sorted set for each: what was used, by when
-- ARGV for each: most, window in ms, whether this call counts for it now; then what tells this call from others
-- Returns {0}, or {which, from 1, in how many ms there is room}.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local member = ARGV[#ARGV]
local which, after = 0, 0
for index = 1, #KEYS do
  local most, window = tonumber(ARGV[index * 3 - 2]), tonumber(ARGV[index * 3 - 1])
  redis.call('ZREMRANGEBYSCORE', KEYS[index], '-inf', now - window)
  local left, wait = 0, 0
  local parts = redis.call('ZRANGE', KEYS[index], 0, -1, 'WITHSCORES')
  for at = 1, #parts, 2 do left = left + tonumber(string.match(parts[at], '^[^:]+')) end
  for at = 1, #parts, 2 do
    if left < most then break end
    left = left - tonumber(string.match(parts[at], '^[^:]+'))
    wait = tonumber(parts[at + 1]) + window - now
  end
  if wait > after then which, after = index, wait end
end
if which > 0 then return {which, math.ceil(after)} end
for index = 1, #KEYS do
  if ARGV[index * 3] == '1' then
    redis.call('ZADD', KEYS[index], now, '1:' .. member)
    redis.call('PEXPIRE', KEYS[index], tonumber(ARGV[index * 3 - 1]))
  end
end
return {0}
