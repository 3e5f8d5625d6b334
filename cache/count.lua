-- Adds a batch of one tenant's counts, once: one that is sent again because nobody knows what became of it adds nothing.
-- KEYS: the writer's last batch, then the hash of each hour.
-- ARGV: number of the batch, seconds to keep it all; then for each hash how many counters, and each one's name and amount.
if tonumber(redis.call("GET", KEYS[1]) or "0") >= tonumber(ARGV[1]) then
  return 0
end
redis.call("SET", KEYS[1], ARGV[1], "EX", 86400)
local at = 3
for place = 2, #KEYS do
  local counters = tonumber(ARGV[at])
  at = at + 1
  for _ = 1, counters do
    redis.call("HINCRBY", KEYS[place], ARGV[at], ARGV[at + 1])
    at = at + 2
  end
  redis.call("EXPIRE", KEYS[place], ARGV[2])
end
return 1
