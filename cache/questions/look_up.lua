-- Read again what an index hinted at, all at one moment: what is not there any more, was invalidated or revoked is no hit.
-- KEYS: 1 the tenant's epochs (HASH), 2 its evidence (HASH), then for each hint its phrasing (HASH), then for each of
--       their answers: what is known of it (HASH), the stored answer itself (HASH)
-- ARGV: 1 number of hints, 2 most age of an answer in ms ('' any)
-- Returns the evidence; a list with answer and profile of each hint; a list with state, offset, support of each
-- answer and fields and values of the stored one. What is not there is empty.
local hints = tonumber(ARGV[1])
local phrasings, answers = {}, {}
for i = 3, 2 + hints do
    phrasings[#phrasings + 1] = redis.call('HMGET', KEYS[i], 'answer', 'profile')
end
for i = 3 + hints, #KEYS, 2 do
    local known = redis.call('HMGET', KEYS[i], 'state', 'offset', 'support')
    local stored = redis.call('HGETALL', KEYS[i + 1])
    local fields = {}
    for j = 1, #stored, 2 do
        fields[stored[j]] = stored[j + 1]
    end
    local young = ARGV[2] == '' or milliseconds() - 1000 * (tonumber(fields['created']) or 0) <= tonumber(ARGV[2])
    if not known[1] or not young or not are_valid(KEYS[1], fields['epochs']) then
        stored = {}
    end
    answers[#answers + 1] = { known, stored }
end
return { redis.call('HGET', KEYS[2], 'state'), phrasings, answers }
