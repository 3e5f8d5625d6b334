-- Bounds what is kept of one tenant: its turns, or its conversations. Stands before the other scripts of this folder.
--
-- KEYS[2]: ids by the time of their last write (ms). KEYS[3]: bytes of each id, and of all of them under ''.
local function count(id, bytes)
  local more = bytes - (tonumber(redis.call('HGET', KEYS[3], id)) or 0)
  if bytes > 0 then
    redis.call('HSET', KEYS[3], id, bytes)
  else
    redis.call('HDEL', KEYS[3], id)
  end
  return redis.call('HINCRBY', KEYS[3], '', more)
end

-- Note that `id` has been written and has so many bytes. Forget what has expired, and delete the oldest while there are
-- more than `most`, or more than `most_bytes`. `prefix`: what the keys of all of them begin with.
local function bound(id, bytes, ttl, most, most_bytes, prefix)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('ZADD', KEYS[2], now, id)
  local all = count(id, bytes)
  for _, expired in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - ttl)) do
    redis.call('ZREM', KEYS[2], expired)
    all = count(expired, 0)
  end
  local kept = redis.call('ZCARD', KEYS[2])
  while kept > most or (all > most_bytes and kept > 1) do
    local oldest = redis.call('ZPOPMIN', KEYS[2])[1]
    redis.call('DEL', prefix .. oldest)
    all = count(oldest, 0)
    kept = kept - 1
  end
  redis.call('PEXPIRE', KEYS[2], ttl)
  redis.call('PEXPIRE', KEYS[3], ttl)
end

