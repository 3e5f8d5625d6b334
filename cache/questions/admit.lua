-- Let a question lead to an answer that the exact cache holds, and keep the number of questions below the caps.
-- KEYS: 1 the phrasing (HASH), 2 what is known of the answer (HASH), 3 the stored answer (HASH), 4 the partition (ZSET),
--       5 the tenant's index (ZSET)
-- ARGV: 1 partition, 2 phrasing, 3 answer, 4 most phrasings of the tenant, 5 most of the partition,
--       6 prefix of the phrasings' keys, 7 prefix of the partitions' keys, 8... fields of the phrasing
-- Returns how many old phrasings went, -1 if the answer is not stored (any more), -2 if it was revoked.
local ttl = redis.call('PTTL', KEYS[3])
if ttl <= 0 then
    return -1
end
if redis.call('HGET', KEYS[2], 'state') == 'revoked' then
    return -2
end
local now = milliseconds()
local function lengthen(key)
    if redis.call('PTTL', key) < ttl then
        redis.call('PEXPIRE', key, ttl)
    end
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'answer', ARGV[3], 'created', now, unpack(ARGV, 8))
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('HSETNX', KEYS[2], 'state', 'probation')
lengthen(KEYS[2])
redis.call('ZADD', KEYS[4], now + ttl, ARGV[2])
redis.call('ZADD', KEYS[5], now + ttl, ARGV[1] .. ':' .. ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now)
local evicted = 0
while redis.call('ZCARD', KEYS[4]) > tonumber(ARGV[5]) do
    local phrasing = redis.call('ZPOPMIN', KEYS[4])[1]
    redis.call('ZREM', KEYS[5], ARGV[1] .. ':' .. phrasing)
    redis.call('DEL', ARGV[6] .. ARGV[1] .. ':' .. phrasing)
    evicted = evicted + 1
end
while redis.call('ZCARD', KEYS[5]) > tonumber(ARGV[4]) do
    local partition, phrasing = string.match(redis.call('ZPOPMIN', KEYS[5])[1], '^([^:]+):(.+)$')
    redis.call('ZREM', ARGV[7] .. partition, phrasing)
    redis.call('DEL', ARGV[6] .. partition .. ':' .. phrasing)
    evicted = evicted + 1
end
lengthen(KEYS[4])
lengthen(KEYS[5])
return evicted
