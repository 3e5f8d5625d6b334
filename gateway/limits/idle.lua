-- Forgets the limits of a tenant that has not used them for long.
-- KEYS: those of limits.lua. ARGV: milliseconds. Returns 1 if there is nothing of it any more.
local clock = tonumber(redis.call('HGET', KEYS[1], 'clock'))
local time = redis.call('TIME')
if clock and time[1] * 1000 + math.floor(time[2] / 1000) - clock < tonumber(ARGV[1]) then
    return 0
end
redis.call('DEL', unpack(KEYS))
return 1
