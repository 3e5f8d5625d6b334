-- A tenant's limits: reserve what a turn may use at most, settle what it used, give back what dead gateways held.
--
-- A subject (the tenant, a key, a user, a model, an adapter) has counters in one field of the tenant's hash. For each
-- rate there is what was used, which drains at the limit's rate like a leaky bucket (GCRA counts the same, in time), and
-- what running turns hold, which does not drain: used + held never exceeds the burst, so that what is settled in any
-- stretch of time is at most the burst and what drained meanwhile. Spend is what was spent this day and month, and held.
--
-- A reservation takes everything of all subjects, or nothing. It has a lease, which its owner renews. When the lease
-- ends, what it held comes back; the turn stays known for one lease more, so that a late settlement still counts.
--
-- Rates are counted in 1/60000 token, so that the drain per millisecond is the limit per minute; all numbers are
-- integers below 2^53. `gateway/limits/book.py` is the same in Python; a test compares them.
--
-- KEYS: 1 HASH subject -> counters, `clock` -> last time seen (ms)   2 HASH reservation -> what it holds
--       3 ZSET reservation by end of lease (ms)
-- ARGV: 1 reserve | hold | extend | widen | settle | charge | read | renew | release   2 lease (ms)   3 reservation
--       4.. requests, turns, sockets, input tokens, output tokens, micro-dollars, then name and bounds (MessagePack) of each subject;
--       for renew instead: more reservations; for release 3 is a part of the ids of reservations, and the last
-- `extend` reserves again, and more, in the place of what was reserved; the request was counted then. If it is refused,
-- everything comes back but that. `hold` and `widen` do the same for what was granted while Redis was away, without
-- asking; `charge` settles it, also if it was not held. `release` gives back what a gateway that has died held, but
-- money only when the lease ends: it may be alive, only silent, and nobody is to be given meanwhile what it then spends.
-- Returns {1 granted | 0 refused, time (ms), counters of each subject}; for renew the reservations that it knew, for
-- release those that were held.
local UNIT, DAY, STEP = 60000, 86400000, 60000
local AT, REQUESTS, INPUT, OUTPUT, HELD_INPUT, HELD_OUTPUT, HELD_SPEND = 1, 2, 3, 4, 5, 6, 7
local TURNS, SOCKETS, THIS_DAY, SPENT_DAY, THIS_MONTH, SPENT_MONTH = 8, 9, 10, 11, 12, 13
local COUNTERS = '(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)'
local COUNTERS_FORMAT = '%d %d %d %d %d %d %d %d %d %d %d %d %d'
local RECORD = '^(%d) (%d+) (%d+) (%d+) (%d+) (%d+)\n(.*)$'
local ENDED, HELD, SETTLED, RELEASED = '0', '1', '2', '3'

local operation, lease, id = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local state, held, leases = KEYS[1], KEYS[2], KEYS[3]
local max, floor, match, format, call = math.max, math.floor, string.match, string.format, redis.call

local function numbers(text)
    local list = {match(text, COUNTERS)}
    for index = 1, 13 do list[index] = tonumber(list[index]) end
    return list
end

-- Subjects of this call, and one read of everything that it needs.
local subjects, fields = {}, {'clock'}
local counting = operation ~= 'renew' and operation ~= 'release'
if counting then
    for index = 10, #ARGV, 2 do
        subjects[#subjects + 1] = {name = ARGV[index], bounds = cmsgpack.unpack(ARGV[index + 1])}
        fields[#fields + 1] = ARGV[index]
    end
end
local stored = call('HMGET', state, unpack(fields))

-- Time never goes back, but for a large step: then it starts anew from there, and no lease may end later than usual.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + floor(clock[2] / 1000)
local seen = tonumber(stored[1]) or now
if seen - now > STEP then
    for _, late in ipairs(call('ZRANGEBYSCORE', leases, now + lease, '+inf', 'LIMIT', 0, 1000)) do
        call('ZADD', leases, now + lease, late)
    end
else
    now = max(now, seen)
end

local loaded = {}
for index, subject in ipairs(subjects) do
    local counters = stored[index + 1] and numbers(stored[index + 1])
    subject.counters = counters or {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
    loaded[subject.name] = subject.counters
end

-- What a reservation holds, or the money alone, goes to (1) or comes from (-1) every subject that it names.
local function hold(record, sign, money_alone)
    local _, turns, sockets, input, output, spend, names = match(record, RECORD)
    if money_alone then turns, sockets, input, output = 0, 0, 0, 0 end
    for name in string.gmatch(names, '[^\n]+') do
        local counters = loaded[name]
        if not counters then
            local text = call('HGET', state, name)
            counters = text and numbers(text) or {now, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
            loaded[name] = counters
        end
        counters[TURNS] = max(0, counters[TURNS] + sign * turns)
        counters[SOCKETS] = max(0, counters[SOCKETS] + sign * sockets)
        counters[HELD_INPUT] = max(0, counters[HELD_INPUT] + sign * input)
        counters[HELD_OUTPUT] = max(0, counters[HELD_OUTPUT] + sign * output)
        counters[HELD_SPEND] = max(0, counters[HELD_SPEND] + sign * spend)
    end
end

-- What is still held comes back.
local function give_back(record)
    local flag = string.sub(record, 1, 1)
    if flag == HELD or flag == RELEASED then hold(record, -1, flag == RELEASED) end
    return flag
end

local function hold_again(record)
    give_back(record)
    hold(record, 1)
end

local function mark(reservation, record, flag)
    call('HSET', held, reservation, flag .. string.sub(record, 2))
    call('ZADD', leases, now + lease, reservation)
end

for _, ended in ipairs(call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 100)) do
    local record = call('HGET', held, ended)
    local flag = record and give_back(record)
    if flag == HELD or flag == RELEASED then
        mark(ended, record, ENDED)
    else
        call('HDEL', held, ended)
        call('ZREM', leases, ended)
    end
end

-- The calendar is UTC. Algorithm of the month: Howard Hinnant, "chrono-compatible low-level date algorithms".
local today = floor(now / DAY)
local shifted = today + 719468
local era = floor(shifted / 146097)
local day_of_era = shifted - era * 146097
local year_of_era = floor((day_of_era - floor(day_of_era / 1460) + floor(day_of_era / 36524)
    - floor(day_of_era / 146096)) / 365)
local day_of_year = day_of_era - 365 * year_of_era - floor(year_of_era / 4) + floor(year_of_era / 100)
local from_march = floor((5 * day_of_year + 2) / 153)
local this_month = (year_of_era + era * 400 + floor(from_march / 10)) * 100 + (from_march + 2) % 12 + 1

local function advance(counters, bounds)
    local passed = max(0, now - counters[AT])
    counters[AT] = now
    for index = REQUESTS, OUTPUT do
        local rate = bounds[index - 1]
        counters[index] = rate < 0 and 0 or max(0, counters[index] - passed * rate)
    end
    -- A day that lies ahead by a small step of the clock goes on; after a large one its spend counts for today.
    local astray = counters[THIS_DAY] > today + 1
    if counters[THIS_DAY] < today then counters[SPENT_DAY] = 0 end
    if counters[THIS_MONTH] < this_month then counters[SPENT_MONTH] = 0 end
    if astray or counters[THIS_DAY] < today then counters[THIS_DAY] = today end
    if astray or counters[THIS_MONTH] < this_month then counters[THIS_MONTH] = this_month end
end
for _, subject in ipairs(subjects) do advance(subject.counters, subject.bounds) end

local requests, turns, sockets, input, output, spend = 0, 0, 0, 0, 0, 0
if counting then
    requests, turns, sockets = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
    input, output, spend = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
end

local function within(used, wanted, bound) return wanted == 0 or bound < 0 or used + wanted <= bound end

local function flows(used, wanted, rate, seconds)
    return wanted == 0 or rate < 0 or used + wanted * UNIT <= max(UNIT, rate * seconds * 1000)
end

local function fits(counters, bounds, new)
    return flows(counters[REQUESTS], new, bounds[1], bounds[4])
        and flows(counters[INPUT] + counters[HELD_INPUT] * UNIT, input, bounds[2], bounds[4])
        and flows(counters[OUTPUT] + counters[HELD_OUTPUT] * UNIT, output, bounds[3], bounds[4])
        and within(counters[TURNS], turns, bounds[5])
        and within(counters[SOCKETS], sockets, bounds[6])
        and within(counters[SPENT_DAY] + counters[HELD_SPEND], spend, bounds[7])
        and within(counters[SPENT_MONTH] + counters[HELD_SPEND], spend, bounds[8])
end

local function charge(subject)
    local counters, bounds = subject.counters, subject.bounds
    counters[REQUESTS] = counters[REQUESTS] + (bounds[1] < 0 and 0 or requests * UNIT)
    counters[INPUT] = counters[INPUT] + (bounds[2] < 0 and 0 or input * UNIT)
    counters[OUTPUT] = counters[OUTPUT] + (bounds[3] < 0 and 0 or output * UNIT)
    counters[SPENT_DAY] = counters[SPENT_DAY] + spend
    counters[SPENT_MONTH] = counters[SPENT_MONTH] + spend
end

local answer = 1
if operation == 'reserve' or operation == 'hold' or operation == 'extend' or operation == 'widen' then
    local record = call('HGET', held, id)
    local flag = record and string.sub(record, 1, 1)
    local asked = operation == 'reserve' or operation == 'extend'
    local counted = {}
    if (operation == 'extend' or operation == 'widen') and record and flag ~= SETTLED then
        give_back(record)
        for name in string.gmatch(select(7, match(record, RECORD)), '[^\n]+') do counted[name] = true end
        call('HDEL', held, id)
        call('ZREM', leases, id)
        record = nil
    end
    if not record then
        for _, subject in ipairs(subjects) do
            local new = counted[subject.name] and 0 or requests
            if asked and not fits(subject.counters, subject.bounds, new) then answer = 0 end
        end
        if answer == 1 then
            local names = {}
            for index, subject in ipairs(subjects) do
                names[index] = subject.name
                local used, new = subject.counters, counted[subject.name] and 0 or requests
                used[REQUESTS] = used[REQUESTS] + (subject.bounds[1] < 0 and 0 or new * UNIT)
            end
            record = format('%s %d %d %d %d %d\n', HELD, turns, sockets, input, output, spend)
                .. table.concat(names, '\n')
            hold(record, 1)
            mark(id, record, HELD)
        end
    elseif flag == ENDED or flag == RELEASED then
        hold_again(record)
        mark(id, record, HELD)
    end
elseif operation == 'settle' or operation == 'charge' then
    local record = call('HGET', held, id)
    local flag = record and give_back(record)
    if record then requests = 0 end  -- counted when it was reserved
    if (record and flag ~= SETTLED) or (operation == 'charge' and not record) then
        for _, subject in ipairs(subjects) do charge(subject) end
    end
    if operation == 'charge' then
        mark(id, '0 0 0 0 0 0\n', SETTLED)
    elseif record and flag ~= SETTLED then
        call('HDEL', held, id)
        call('ZREM', leases, id)
    end
elseif operation == 'renew' then
    answer = 0
    for index = 3, #ARGV do
        local record = call('HGET', held, ARGV[index])
        local flag = record and string.sub(record, 1, 1)
        if flag == ENDED or flag == RELEASED then hold_again(record) end
        if record and flag ~= SETTLED then
            mark(ARGV[index], record, HELD)
            answer = answer + 1
        end
    end
elseif operation == 'release' then
    answer = 0
    for _, reservation in ipairs(call('HKEYS', held)) do
        local record = string.find(reservation, id, 1, true) and call('HGET', held, reservation)
        if record and string.sub(record, 1, 1) == HELD then
            hold(record, -1)
            hold(record, 1, true)
            call('HSET', held, reservation, RELEASED .. string.sub(record, 2))
            answer = answer + 1
        end
    end
end

local writes = {'clock', format('%d', now)}
for name, counters in pairs(loaded) do
    counters.text = format(COUNTERS_FORMAT, unpack(counters))
    writes[#writes + 1] = name
    writes[#writes + 1] = counters.text
end
call('HSET', state, unpack(writes))
-- Without a time to live, so that Redis drops none of it to make room; `limits/idle.lua` deletes what is old. Earlier
-- versions set one.
if not stored[1] or floor(seen / DAY) ~= today then
    for _, key in ipairs(KEYS) do call('PERSIST', key) end
end
if not counting then return answer end

-- Subjects that nobody uses any more leave: one is looked at with each settlement.
if operation == 'settle' and call('HLEN', state) > 64 then
    local name = call('HRANDFIELD', state)
    local idle = name ~= 'clock' and not loaded[name] and numbers(call('HGET', state, name))
    if idle and idle[AT] + 2 * DAY < now and idle[HELD_INPUT] + idle[TURNS] + idle[SOCKETS] == 0
        and (idle[SPENT_MONTH] == 0 or idle[THIS_MONTH] < this_month) then
        call('HDEL', state, name)
    end
end

local reply = {answer, now}
for index, subject in ipairs(subjects) do
    reply[index + 2] = subject.counters.text
end
return reply
