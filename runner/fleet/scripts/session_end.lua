-- Give back the right to end a session; forget the session, if it has ended.
--
-- KEYS 1 all sessions, 2 what is there while somebody ends it
-- ARGV 1 the session, 2 whose right it is, 3 whether the session has ended
-- Returns 1, or 0: the right had run out, and the session may be in use again.
if redis.call('GET', KEYS[2]) ~= ARGV[2] then return 0 end
if ARGV[3] == '1' then redis.call('ZREM', KEYS[1], ARGV[1]) end
redis.call('DEL', KEYS[2])
return 1
