-- A consistent look: Redis' time and the replies of some reading commands.
-- KEYS: all keys that they touch. ARGV: per command the number of its words, then its words.
local time = redis.call('TIME')
local replies = { tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) }
local at = 1
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    replies[#replies + 1] = redis.call(unpack(ARGV, at + 1, at + words))
    at = at + words + 1
end
return replies
