-- Writes parts of a conversation of the chat page, unless it has another revision than the writer has read, or there is
-- no room for it.
--
-- KEYS: the conversation's hash, bytes of the user's conversations (id -> bytes). ARGV: id, revision that was read (0:
-- there is none), now (ms), ms to live, most conversations, most turns of one, most bytes of one, most bytes of all,
-- what the keys of the user's conversations begin with; then of each part: field, bytes before it was compressed, value.
-- Returns the revision, and '' or why nothing was written: 'revision', 'chats', 'turns', 'chat' or 'bytes'.
local id, read, now, ttl = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local most, most_turns, most_own = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local most_all, prefix = tonumber(ARGV[8]), ARGV[9]

local revision = tonumber(redis.call('HGET', KEYS[1], 'revision') or 0)
if revision ~= read then
  return {revision, 'revision'}
end

local chats, others, before = 0, 0, 0
local known = redis.call('HGETALL', KEYS[2])
for i = 1, #known, 2 do
  if redis.call('EXISTS', prefix .. known[i]) == 0 then
    redis.call('HDEL', KEYS[2], known[i])
  elseif known[i] == id then
    before = tonumber(known[i + 1])
  else
    chats = chats + 1
    others = others + tonumber(known[i + 1])
  end
end

-- A value begins with its number, by which turns are in order, and its bytes before it was compressed.
local parts = tonumber(redis.call('HGET', KEYS[1], 'last') or 0)
local own, last, heads = before, parts, {}
for i = 10, #ARGV, 3 do
  local old = redis.call('HGET', KEYS[1], ARGV[i])
  own = own + tonumber(ARGV[i + 1]) - (old and tonumber(string.sub(old, 11, 20)) or 0)
  if not old then
    last = last + 1
  end
  local number = old and string.sub(old, 1, 10) or string.format('%010d', last)
  heads[i] = number .. string.format('%010d', ARGV[i + 1])
end
if revision == 0 and chats >= most then
  return {revision, 'chats'}
end
if last > parts and last - 2 > most_turns then -- the other two are entry and head
  return {revision, 'turns'}
end
if own > before and own > most_own then
  return {revision, 'chat'}
end
if own > before and others + own > most_all then
  return {revision, 'bytes'}
end

for i = 10, #ARGV, 3 do
  redis.call('HSET', KEYS[1], ARGV[i], heads[i] .. ARGV[i + 2])
end
-- No revision comes twice, not even of a conversation that was deleted and made anew.
revision = math.max(revision + 1, now)
redis.call('HSET', KEYS[1], 'revision', string.format('%.0f', revision), 'last', last)
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('HSET', KEYS[2], id, own)
redis.call('PEXPIRE', KEYS[2], math.max(ttl, redis.call('PTTL', KEYS[2])))
return {revision, ''}
