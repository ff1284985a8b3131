-- Note that a call begins, if its host still wants it here. All or nothing.
--
-- KEYS 1 the call
-- ARGV 1 node, 2 epoch
-- Returns 1, or 0: it was placed elsewhere, cancelled, or its host is gone.
local found = redis.call('HMGET', KEYS[1], 'state', 'node', 'epoch')
if found[1] ~= 'placed' or found[2] ~= ARGV[1] or found[3] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'state', 'begun')
return 1
