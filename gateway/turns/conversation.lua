-- Changes one conversation, all of it or nothing.
--
-- KEYS: the conversation's hash, the tenant's index, the bytes of the tenant's conversations. ARGV: what is done
-- (create, update, append, remove, delete), id, ms to live, most conversations and most bytes of the tenant, what the
-- keys of the tenant's conversations begin with, most items and most bytes of a conversation that takes more; then for
-- create and update the sealed head, for create and append the field and the sealed text of each item, for remove a field.
-- Returns 1; 0 without such a conversation or item; -1 if it is full.
local what, id, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local conversation, first = KEYS[1], 9

if what ~= 'create' and redis.call('HEXISTS', conversation, 'head') == 0 then
  return 0
end
if what == 'delete' then
  redis.call('DEL', conversation)
  redis.call('ZREM', KEYS[2], id)
  count(id, 0)
  return 1
end
local bytes = what ~= 'create' and tonumber(redis.call('HGET', KEYS[3], id)) or 0

local function put(field, value)
  bytes = bytes + #value - redis.call('HSTRLEN', conversation, field)
  redis.call('HSET', conversation, field, value)
end

if what == 'remove' then
  bytes = bytes - redis.call('HSTRLEN', conversation, ARGV[first])
  if redis.call('HDEL', conversation, ARGV[first]) == 0 then
    return 0
  end
else
  if what == 'append' then
    local items = redis.call('HLEN', conversation) - 2
    if items >= tonumber(ARGV[7]) or bytes >= tonumber(ARGV[8]) then
      return -1
    end
  else
    put('head', ARGV[first])
    first = first + 1
  end
  if what == 'create' then
    redis.call('HSET', conversation, 'last', 0)
  end
  for item = first, #ARGV, 2 do
    if redis.call('HEXISTS', conversation, ARGV[item]) == 0 then  -- else it was written, and nobody heard of it
      local number = redis.call('HINCRBY', conversation, 'last', 1)
      put(ARGV[item], string.format('%010d', number) .. ARGV[item + 1])
    end
  end
end
redis.call('PEXPIRE', conversation, ttl)
bound(id, bytes, ttl, tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6])
return 1
