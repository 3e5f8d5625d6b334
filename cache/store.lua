-- Store one answer and keep the tenant's number of answers below its cap, oldest first.
-- KEYS: 1 the answer (HASH), 2 the tenant's index (ZSET), 3 the tenant's epoch (STRING)
-- ARGV: 1 digest, 2 time to live in ms, 3 most entries, 4 prefix of the answers' keys, 5 epoch at look-up, 6... field, value
-- Returns how many old answers were evicted, or -1 if the tenant's answers were invalidated since the look-up.
if (redis.call('GET', KEYS[3]) or '0') ~= ARGV[5] then
    return -1
end
local now = redis.call('TIME')
local milliseconds = now[1] * 1000 + math.floor(now[2] / 1000)
local ttl = tonumber(ARGV[2])
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 6))
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('ZADD', KEYS[2], milliseconds, ARGV[1])
-- Expired answers leave the index by themselves here; what is left over the cap is evicted.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. (milliseconds - ttl))
local excess = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[3])
if excess > 0 then
    local oldest = redis.call('ZPOPMIN', KEYS[2], excess)
    for i = 1, #oldest, 2 do
        redis.call('DEL', ARGV[4] .. oldest[i])
    end
end
redis.call('PEXPIRE', KEYS[2], ttl)
return math.max(excess, 0)
