-- A tenant's token bucket: reserve before a turn, settle after it, in one atomic step each.
--
-- The level is kept in units of 1/60000 token, so that the refill per millisecond is exactly `tokens per minute` units
-- and all arithmetic is on integers. A reservation has a lease: if its gateway dies, the tokens come back when the lease
-- ends. A turn that outlives its lease is charged in full when it is settled after all.
--
-- KEYS: 1 HASH level, at (ms)   2 HASH turn -> tokens held (0: the lease has ended)   3 ZSET turn by end of lease (ms)
-- ARGV: 1 'reserve' | 'settle' | 'read'   2 turn   3 tokens (held or used)   4 tokens per minute   5 burst   6 lease (ms)
-- Returns {granted 0|1, tokens left, ms until full, ms until enough (only if not granted)}.
local UNIT = 60000
local operation, turn, tokens = ARGV[1], ARGV[2], tonumber(ARGV[3])
local rate, burst, lease = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local state = redis.call('HMGET', KEYS[1], 'level', 'at')
local capacity = burst * UNIT
local level = tonumber(state[1]) or capacity
local at = tonumber(state[2]) or now
level = math.min(capacity, level + math.max(0, now - at) * rate)

-- Leases that have ended: the tokens come back, the turn stays known for another lease so that a late settlement counts.
for _, ended in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 100)) do
    local held = tonumber(redis.call('HGET', KEYS[2], ended)) or 0
    if held > 0 then
        level = math.min(capacity, level + held * UNIT)
        redis.call('HSET', KEYS[2], ended, 0)
        redis.call('ZADD', KEYS[3], now + lease, ended)
    else
        redis.call('HDEL', KEYS[2], ended)
        redis.call('ZREM', KEYS[3], ended)
    end
end

local granted, wait = 1, 0
local held = redis.call('HGET', KEYS[2], turn)
if operation == 'reserve' and not held then
    if level >= tokens * UNIT then
        level = level - tokens * UNIT
        redis.call('HSET', KEYS[2], turn, tokens)
        redis.call('ZADD', KEYS[3], now + lease, turn)
    else
        granted = 0
        wait = math.ceil((tokens * UNIT - level) / rate)
    end
elseif operation == 'settle' and held then
    level = math.min(capacity, level + (tonumber(held) - tokens) * UNIT)
    redis.call('HDEL', KEYS[2], turn)
    redis.call('ZREM', KEYS[3], turn)
end

-- A full bucket without reservations is the same as none, so the keys may go once that is sure to be reached.
local full = math.ceil((capacity - level) / rate)
redis.call('HSET', KEYS[1], 'level', string.format('%d', level), 'at', string.format('%d', now))
for _, key in ipairs(KEYS) do
    redis.call('PEXPIRE', key, full + 2 * lease)
end
return {granted, math.floor(level / UNIT), full, wait}
