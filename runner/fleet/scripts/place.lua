-- Give a call a place on a node: where its user's worker is warm, else where most is free. All or nothing.
--
-- KEYS 1 the call, 2 the node of its user, 3 the nodes of its release, 4 users that wait, 5 when each last
--      asked, 6 turns, then one sorted set of calls for each limit
-- ARGV 1 prefix, 2 call, 3 epoch, 4 host, 5 lease in ms, 6 how long a user stays with a node in ms, 7 user,
--      8 a node that did not take it and is passed over where there is another, 9 for how long the call is noted in
--      ms, then for each limit the calls that it allows
-- Returns {'placed', node, whether its user had a place there before}, {'full', which limit, from 1, or 0: the nodes} or {'none'}: no node is there.
local prefix, call, epoch, host = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lease_ms, stay_ms, user = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local avoided, note_ms = ARGV[8], tonumber(ARGV[9])
local FIRST_LIMIT, FIRST_MOST = 7, 10
local WAITS_MS = 2000

-- The clock of Redis alone counts: those of hosts and nodes may differ.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Users take turns where all want more than there is: see runner/toolset/fair_queue.py.
local turns = redis.call('HMGET', KEYS[6], '', user)
local turn = math.max(tonumber(turns[2] or '0'), tonumber(turns[1] or '0'))
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now)) do
  redis.call('ZREM', KEYS[5], gone)
  redis.call('ZREM', KEYS[4], gone)
  redis.call('HDEL', prefix .. 'waits-at', gone)
end

local waits_at = prefix .. 'waits-at'

local function eager(which)
  redis.call('SET', prefix .. 'eager', '1', 'PX', WAITS_MS)
  return {'full', which}
end

-- Who waits for a place of one node only, since the user's worker is there, keeps nobody of another one waiting.
local function wait(which, at)
  if at then redis.call('HSET', waits_at, user, at) else redis.call('HDEL', waits_at, user) end
  redis.call('PEXPIRE', waits_at, WAITS_MS * 2)
  redis.call('ZADD', KEYS[4], turn, user)
  redis.call('ZADD', KEYS[5], now + WAITS_MS, user)
  redis.call('PEXPIRE', KEYS[4], WAITS_MS * 2)
  redis.call('PEXPIRE', KEYS[5], WAITS_MS * 2)
  return eager(which)
end

for index = FIRST_LIMIT, #KEYS do
  local most = tonumber(ARGV[FIRST_MOST + index - FIRST_LIMIT])
  -- Places whose lease has ended are looked for where they would keep this call from one.
  if redis.call('ZCARD', KEYS[index]) >= most and
      (redis.call('ZREMRANGEBYSCORE', KEYS[index], '-inf', now) == 0 or redis.call('ZCARD', KEYS[index]) >= most) then
    local which = index - FIRST_LIMIT + 1
    -- The first one is of all users together: they take turns. At another one nobody else has to wait.
    if which == 1 then return wait(which) end
    return eager(which)
  end
end

local function state(node)
  local found = redis.call('HMGET', prefix .. 'node:' .. node, 'capacity', 'draining')
  if not found[1] or found[2] == '1' then return nil end
  local load = prefix .. 'load:' .. node
  redis.call('ZREMRANGEBYSCORE', load, '-inf', now)
  return tonumber(found[1]) - redis.call('ZCARD', load), tonumber(found[1])
end

local chosen = redis.call('GET', KEYS[2])
local free, capacity = nil, nil
if chosen and chosen ~= avoided then free, capacity = state(chosen) end
local others_free = 0
local stays = free and 1 or 0
if not free then
  -- The node of this user is gone, or there was none.
  chosen = nil
  local best = -1
  local nodes = redis.call('SMEMBERS', KEYS[3])
  table.sort(nodes)
  -- Of nodes that have the same to offer each gets a new user in its turn.
  local first = redis.call('INCR', prefix .. 'rounds')
  for at = 1, #nodes do
    local node = nodes[(first + at) % #nodes + 1]
    local its_free, its_capacity = state(node)
    if its_free then
      others_free = others_free + math.max(its_free, 0)
      local share = its_free / its_capacity
      if node == avoided then share = -0.5 end
      if share > best then chosen, free, capacity, best = node, its_free, its_capacity, share end
    elseif redis.call('EXISTS', prefix .. 'node:' .. node) == 0 then
      redis.call('SREM', KEYS[3], node)
    end
  end
  if not chosen then return {'none'} end
else
  others_free = free
end
local only = stays == 1 and chosen or nil
if free <= 0 then return wait(0, only) end
-- Who has waited for longer, by turns, comes first where there is not enough for all.
local before = 0
local earlier = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', '(' .. tostring(turn))
if #earlier >= others_free then
  for _, other in ipairs(earlier) do
    local at = redis.call('HGET', waits_at, other)
    if not at or at == chosen then before = before + 1 end
    if before >= others_free then return wait(0, only) end
  end
end

for index = FIRST_LIMIT, #KEYS do
  redis.call('ZADD', KEYS[index], now + lease_ms, call)
  redis.call('PEXPIRE', KEYS[index], lease_ms)
end
redis.call('ZADD', prefix .. 'load:' .. chosen, now + lease_ms, call)
redis.call('PEXPIRE', prefix .. 'load:' .. chosen, lease_ms)
redis.call('SET', KEYS[2], chosen, 'PX', stay_ms)
redis.call('HSET', KEYS[1], 'state', 'placed', 'node', chosen, 'epoch', epoch, 'host', host)
redis.call('PEXPIRE', KEYS[1], note_ms)
if redis.call('ZREM', KEYS[4], user) == 1 then
  redis.call('ZREM', KEYS[5], user)
  redis.call('HDEL', waits_at, user)
end
redis.call('HSET', KEYS[6], '', tostring(turn), user, tostring(turn + 1))
redis.call('PEXPIRE', KEYS[6], 60000)
return {'placed', chosen, stays}
