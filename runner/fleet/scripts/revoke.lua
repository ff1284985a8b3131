-- Take a call away from its node; from then on it cannot begin there.
--
-- KEYS 1 the call
-- ARGV 1 epoch, 2 how long to keep the note in ms
-- Returns how it stood: 'placed', 'begun', or 'missing': Redis has lost it.
local found = redis.call('HMGET', KEYS[1], 'state', 'epoch')
if not found[1] then
  redis.call('HSET', KEYS[1], 'state', 'revoked', 'epoch', ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 'missing'
end
redis.call('HSET', KEYS[1], 'state', 'revoked')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return found[1]
