-- Store one embedding, and keep the bytes of the tenant's embeddings below their cap, oldest first.
-- KEYS: 1 the embedding (STRING), 2 the tenant's index (ZSET)
-- ARGV: 1 digest, 2 embedding, as long as all others, 3 time to live in ms, 4 most bytes, 5 prefix of the embeddings' keys
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
while redis.call('ZCARD', KEYS[2]) * #ARGV[2] > tonumber(ARGV[4]) do
    redis.call('DEL', ARGV[5] .. redis.call('ZPOPMIN', KEYS[2])[1])
end
