-- Note that a call begins, if its host still wants it here; and tell the host. All or nothing.
--
-- KEYS 1 the call, 2 what is said to its host
-- ARGV 1 node, 2 epoch, 3 what to say
-- Returns 1, or 0: it was placed elsewhere, cancelled, or its host is gone.
local found = redis.call('HMGET', KEYS[1], 'state', 'node', 'epoch')
if found[1] ~= 'placed' or found[2] ~= ARGV[1] or found[3] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'state', 'begun')
redis.call('XADD', KEYS[2], '*', 'said', ARGV[3])
return 1
