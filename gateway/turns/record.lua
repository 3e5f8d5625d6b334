-- Writes what is kept of one turn, unless that has been settled: a turn ends exactly once, whoever says so first.
--
-- running -> ended (by its gateway), running -> lost (by another gateway, when its own is gone), anything -> deleted.
-- KEYS: the turn's hash, the tenant's index, the bytes of the tenant's turns (id -> bytes, '' -> all). ARGV: state,
-- gateway, sealed data, ms to live, id, most turns and most bytes of the tenant, what the keys of the tenant's turns begin
-- with. Returns 1 if it was written.
local state, gateway, data, ttl, id = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local most, most_bytes, prefix = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local before = redis.call('HGET', KEYS[1], 'state')

local function count(turn, bytes)
  local more = bytes - (tonumber(redis.call('HGET', KEYS[3], turn)) or 0)
  if bytes > 0 then
    redis.call('HSET', KEYS[3], turn, bytes)
  else
    redis.call('HDEL', KEYS[3], turn)
  end
  return redis.call('HINCRBY', KEYS[3], '', more)
end

if state == 'deleted' then
  redis.call('DEL', KEYS[1])
  -- Stays for a while, so that what its gateway writes late is refused.
  redis.call('HSET', KEYS[1], 'state', 'deleted')
  redis.call('PEXPIRE', KEYS[1], ttl)
  redis.call('ZREM', KEYS[2], id)
  count(id, 0)
  redis.call('PEXPIRE', KEYS[3], ttl)
  return before and before ~= 'deleted' and 1 or 0
end
if before and before ~= 'running' or state == 'lost' and not before then
  return 0
end
redis.call('HSET', KEYS[1], 'state', state, 'gateway', gateway, 'data', data)
redis.call('PEXPIRE', KEYS[1], ttl)

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[2], now, id)
local bytes = count(id, #data)
for _, expired in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - ttl)) do
  redis.call('ZREM', KEYS[2], expired)
  bytes = count(expired, 0)
end
local turns = redis.call('ZCARD', KEYS[2])
while turns > most or (bytes > most_bytes and turns > 1) do
  local oldest = redis.call('ZPOPMIN', KEYS[2])[1]
  redis.call('DEL', prefix .. oldest)
  bytes = count(oldest, 0)
  turns = turns - 1
end
redis.call('PEXPIRE', KEYS[2], ttl)
redis.call('PEXPIRE', KEYS[3], ttl)
return 1
