-- Count one call for each of several rates or, where one is reached, for none.
--
-- KEYS one for each: a sorted set of calls by when, or what was used, by when its step began (see spend.lua)
-- ARGV for each: most, window in ms, whether this call counts for it now; then what tells this call from others
-- Returns {0}, or {which, from 1, in how many ms there is room}.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local member = ARGV[#ARGV]

-- Return what was used since, as pairs of when and how much, the oldest first.
local function parts_of(key, since, of_calls)
  local parts = {}
  if of_calls then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', since)
    local found = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
    for at = 2, #found, 2 do parts[#parts + 1] = {tonumber(found[at]), 1} end
    return parts
  end
  local found = redis.call('HGETALL', key)
  for at = 1, #found, 2 do
    local began = tonumber(found[at])
    if began > since then
      parts[#parts + 1] = {began, tonumber(found[at + 1])}
    else
      redis.call('HDEL', key, found[at])
    end
  end
  table.sort(parts, function(one, other) return one[1] < other[1] end)
  return parts
end

local which, after = 0, 0
for index = 1, #KEYS do
  local most, window = tonumber(ARGV[index * 3 - 2]), tonumber(ARGV[index * 3 - 1])
  local left, wait = 0, 0
  local parts = parts_of(KEYS[index], now - window, ARGV[index * 3] == '1')
  for _, part in ipairs(parts) do left = left + part[2] end
  for _, part in ipairs(parts) do
    if left < most then break end
    left = left - part[2]
    wait = part[1] + window - now
  end
  if wait > after then which, after = index, wait end
end
if which > 0 then return {which, math.ceil(after)} end
for index = 1, #KEYS do
  if ARGV[index * 3] == '1' then
    redis.call('ZADD', KEYS[index], now, member)
    redis.call('PEXPIRE', KEYS[index], tonumber(ARGV[index * 3 - 1]))
  end
end
return {0}
