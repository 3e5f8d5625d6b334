-- Delete one answer, also one that is being made: its flight ends, so that it is not stored.
-- KEYS: 1 the answer (HASH), 2 the tenant's index (ZSET), 3 its bytes (STRING), 4 the flight (STRING)
-- ARGV: 1 digest
-- Returns 1 if there was one.
redis.call('DEL', KEYS[4])
local size = redis.call('HGET', KEYS[1], 'size')
if size and redis.call('ZREM', KEYS[2], ARGV[1] .. ':' .. size) == 1 and redis.call('EXISTS', KEYS[3]) == 1 then
    redis.call('DECRBY', KEYS[3], size)
end
return redis.call('DEL', KEYS[1])
