-- Writes the result of one line of a batch, unless it has one: a line that ran twice has the result that came first.
--
-- KEYS: the batch, the file that the result goes to, the other one of both, bytes of the tenant's files (id -> bytes).
-- ARGV: number of the line, sealed result, its bytes, ms to live, the file's id, `completed` or `failed`, input, cached and
-- output tokens. Returns 1 if it was written.
local line, ttl = ARGV[1], tonumber(ARGV[4])
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
if redis.call('HEXISTS', KEYS[2], line) == 1 or redis.call('HEXISTS', KEYS[3], line) == 1 then
  return 0
end
if redis.call('EXISTS', KEYS[2]) == 0 then
  redis.call('HDEL', KEYS[4], ARGV[5]) -- bytes of results that Redis has dropped
end
redis.call('HSET', KEYS[2], line, ARGV[2])
redis.call('PEXPIRE', KEYS[2], ttl)
redis.call('HINCRBY', KEYS[4], ARGV[5], ARGV[3])
redis.call('PEXPIRE', KEYS[4], math.max(ttl, redis.call('PTTL', KEYS[4])))
redis.call('HINCRBY', KEYS[1], ARGV[6], 1)
redis.call('HINCRBY', KEYS[1], 'input_tokens', ARGV[7])
redis.call('HINCRBY', KEYS[1], 'cached_tokens', ARGV[8])
redis.call('HINCRBY', KEYS[1], 'output_tokens', ARGV[9])
return 1
