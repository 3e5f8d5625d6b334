-- Writes a part of a file, unless its tenant has too many files or bytes.
--
-- KEYS: the file's hash, bytes of the tenant's files (id -> bytes). ARGV: id, field ('': nothing is written), data, bytes
-- that the part adds to the file, ms to live, most files, most bytes, what the keys of the tenant's files begin with.
-- Returns '', or what there is too much of: 'files' or 'bytes'.
local id, field, data, bytes, ttl = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local most_files, most_bytes, prefix = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]

local files, sum, own = 0, bytes, false
local known = redis.call('HGETALL', KEYS[2])
for i = 1, #known, 2 do
  if redis.call('EXISTS', prefix .. known[i]) == 0 then
    redis.call('HDEL', KEYS[2], known[i])
  else
    files = files + 1
    sum = sum + tonumber(known[i + 1])
    own = own or known[i] == id
  end
end
if not own and files >= most_files then
  return 'files'
end
if bytes > 0 and sum > most_bytes then
  return 'bytes'
end
if field == '' then
  return ''
end
redis.call('HSET', KEYS[1], field, data)
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('HINCRBY', KEYS[2], id, bytes)
redis.call('PEXPIRE', KEYS[2], math.max(ttl, redis.call('PTTL', KEYS[2])))
return ''
