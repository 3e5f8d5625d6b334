-- Begin a new epoch: answers that were begun in the old one are misses from now on, everywhere.
-- KEYS: 1 the tenant's epochs (HASH)
-- ARGV: 1 a tag, or '*' for all answers, 2 life of epochs in ms, 3 most tags
local epoch = next_epoch(redis.call('HGET', KEYS[1], ARGV[1]))
redis.call('HSET', KEYS[1], ARGV[1], epoch)
if redis.call('HEXISTS', KEYS[1], '*') == 0 then
    redis.call('HSET', KEYS[1], '*', epoch)
elseif ARGV[1] == '*' or redis.call('HLEN', KEYS[1]) > tonumber(ARGV[3]) then
    -- All answers are new from here on, or too many tags are remembered: then all go, which is always safe.
    epoch = next_epoch(redis.call('HGET', KEYS[1], '*'))
    redis.call('DEL', KEYS[1])
    redis.call('HSET', KEYS[1], '*', epoch)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return epoch
