-- Run commands if the audit log still ends where it was seen to end, and not too long ago: all or none.
-- KEYS: the head, then all other keys that they touch.
-- ARGV: the hash that the head is expected to have ('' if there is none); the time of the look and the longest that may
-- have passed since then (ms); then per command the number of its words, and its words.
-- Returns 1 if they were run, 0 if one has to look again.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if (redis.call('HGET', KEYS[1], 'hash') or '') ~= ARGV[1] then return 0 end
if math.abs(now - tonumber(ARGV[2])) > tonumber(ARGV[3]) then return 0 end
local at = 4
while at <= #ARGV do
    local words = tonumber(ARGV[at])
    redis.call(unpack(ARGV, at + 1, at + words))
    at = at + words + 1
end
return 1
