-- Writes what is kept of one turn, unless that has been settled.
--
-- running -> ended (by its gateway), running -> lost (by another gateway, when its own counts as dead), lost -> running or
-- ended (by its gateway, which was only cut off: its client has seen this end), anything -> deleted.
-- KEYS: the turn's hash, the tenant's index, the bytes of the tenant's turns. ARGV: state, gateway, sealed data, ms to
-- live, id, most turns and most bytes of the tenant, what the keys of the tenant's turns begin with. Returns 1 if it was
-- written.
local state, gateway, data, ttl, id = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local before = redis.call('HGET', KEYS[1], 'state')

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
if before == 'ended' or before == 'deleted' or state == 'lost' and before ~= 'running' then
  return 0
end
redis.call('HSET', KEYS[1], 'state', state, 'gateway', gateway, 'data', data)
redis.call('PEXPIRE', KEYS[1], ttl)
bound(id, #data, ttl, tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8])
return 1
