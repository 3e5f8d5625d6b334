-- Store one answer, end its flight, and keep number and size of the tenant's answers below their caps, oldest first.
-- KEYS: 1 the answer (HASH), 2 the tenant's index (ZSET), 3 its bytes (STRING), 4 its epochs (HASH), 5 the flight (STRING)
-- ARGV: 1 digest, 2 time to live in ms, 3 most entries, 4 most bytes, 5 prefix of the answers' keys,
--       6 epochs under which it began, 7 turn that leads the flight ('' if none does), 8 bytes, 9... field, value
-- Returns how many old answers were evicted, or -1 if it was invalidated or deleted since the look-up.
local now = milliseconds()
local ttl = tonumber(ARGV[2])
if ARGV[7] ~= '' then
    local flight = redis.call('GET', KEYS[5])
    if not flight or string.match(flight, '^%S+') ~= ARGV[7] then
        return -1
    end
    redis.call('DEL', KEYS[5])
end
if not are_valid(KEYS[4], ARGV[6]) then
    return -1
end
local total = tonumber(redis.call('GET', KEYS[3]))
if not total then
    total = 0
    for _, member in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
        total = total + (tonumber(string.match(member, ':(%d+)$')) or 0)
    end
end
local function forget(member)
    total = total - (tonumber(string.match(member, ':(%d+)$')) or 0)
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
    forget(member)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
local before = redis.call('HGET', KEYS[1], 'size')
if before and redis.call('ZREM', KEYS[2], ARGV[1] .. ':' .. before) == 1 then
    total = total - tonumber(before)
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'size', ARGV[8], 'epochs', ARGV[6], 'created', string.format('%.3f', now / 1000), unpack(ARGV, 9))
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('ZADD', KEYS[2], now + ttl, ARGV[1] .. ':' .. ARGV[8])
total = total + tonumber(ARGV[8])
local evicted = 0
while redis.call('ZCARD', KEYS[2]) > tonumber(ARGV[3]) or (total > tonumber(ARGV[4]) and redis.call('ZCARD', KEYS[2]) > 0) do
    local member = redis.call('ZPOPMIN', KEYS[2])[1]
    forget(member)
    redis.call('DEL', ARGV[5] .. string.match(member, '^[^:]+'))
    evicted = evicted + 1
end
-- They live as long as the answer that lives longest.
for _, key in ipairs({ KEYS[2], KEYS[3] }) do
    if key == KEYS[3] then
        redis.call('SET', key, string.format('%.0f', math.max(total, 0)), 'KEEPTTL')
    end
    if redis.call('PTTL', key) < ttl then
        redis.call('PEXPIRE', key, ttl)
    end
end
return evicted
