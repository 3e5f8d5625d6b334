-- Find an answer, a turn that is making it, or leave to make it, in this order.
-- KEYS: 1 the tenant's epochs (HASH), 2 the answer (HASH), 3 its flight (STRING)
-- ARGV: 1 turn that may lead ('' none), 2 its lease in ms, 3 '1': a stored answer or another's will do,
--       4 most age of a stored one in ms ('' any), 5 turn that is not to be followed ('' none), 6 life of epochs in ms,
--       7... tags
-- Returns outcome, reason, epochs under which an answer begins now, then fields and values of a hit, or who leads.
local reason = 'absent'
if ARGV[3] ~= '1' then
    reason = 'refresh'
else
    local stored = redis.call('HGETALL', KEYS[2])
    if #stored > 0 then
        local answer = {}
        for i = 1, #stored, 2 do
            answer[stored[i]] = stored[i + 1]
        end
        if not are_valid(KEYS[1], answer['epochs']) then
            reason = 'invalidated'
        elseif ARGV[4] ~= '' and milliseconds() - 1000 * (tonumber(answer['created']) or 0) > tonumber(ARGV[4]) then
            reason = 'stale'
        else
            return { 'hit', 'stored', answer['epochs'], unpack(stored) }
        end
    end
end
local epoch = redis.call('HGET', KEYS[1], '*')
if not epoch then
    epoch = next_epoch()
    redis.call('HSET', KEYS[1], '*', epoch)
    redis.call('PEXPIRE', KEYS[1], ARGV[6])
end
local epochs = '*=' .. epoch
for i = 7, #ARGV do
    epochs = epochs .. ' ' .. ARGV[i] .. '=' .. (redis.call('HGET', KEYS[1], ARGV[i]) or '')
end
local flight = redis.call('GET', KEYS[3])
if flight then
    local leader, begun = string.match(flight, '^(%S+) (.*)$')
    if leader and leader ~= ARGV[5] and are_valid(KEYS[1], begun) then
        return { ARGV[3] == '1' and 'join' or 'miss', reason, epochs, leader }
    end
end
if ARGV[1] == '' then
    return { 'miss', reason, epochs }
end
redis.call('SET', KEYS[3], ARGV[1] .. ' ' .. epochs, 'PX', ARGV[2])
return { 'lead', reason, epochs }
