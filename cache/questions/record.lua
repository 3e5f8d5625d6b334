-- Write what a check has taught, unless another gateway has written in between.
-- KEYS: 1 what is known of the answer (HASH), 2 the tenant's evidence (HASH)
-- ARGV: 1 version of the answer's record that was read, 2 of the evidence, 3 life of the evidence in ms,
--       4 the new evidence ('' stays), 5... new fields of the answer
-- Returns 1 if it was written, 0 if a version is another by now, -1 if the answer is gone.
if redis.call('EXISTS', KEYS[1]) == 0 then
    return -1
end
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] or (redis.call('HGET', KEYS[2], 'version') or '0') ~= ARGV[2] then
    return 0
end
redis.call('HSET', KEYS[1], 'version', ARGV[1] + 1, unpack(ARGV, 5))
if ARGV[4] ~= '' then
    redis.call('HSET', KEYS[2], 'version', ARGV[2] + 1, 'state', ARGV[4])
    redis.call('PEXPIRE', KEYS[2], ARGV[3])
end
return 1
