-- What the scripts of the response cache share: they begin with this file.
-- Epochs are `<name>=<number>` separated by spaces: `*` for all of a tenant's answers, any other name for a tag. A name
-- without a number was never invalidated. Only the epoch of `*` must exist: with the hash, it goes when Redis evicts it,
-- and then nothing that was stored before is valid.
local function milliseconds()
    local now = redis.call('TIME')
    return now[1] * 1000 + math.floor(now[2] / 1000)
end

-- A number that was not used before, also if the hash was lost in between.
local function next_epoch(last)
    local now = redis.call('TIME')
    return string.format('%.0f', math.max((tonumber(last) or 0) + 1, now[1] * 1000000 + now[2]))
end

local function are_valid(key, epochs)
    if not epochs or string.sub(epochs, 1, 2) ~= '*=' then
        return false
    end
    for name, number in string.gmatch(epochs, '(%S+)=(%d*)') do
        local current = redis.call('HGET', key, name)
        if name == '*' and not current or (current or '') ~= number then
            return false
        end
    end
    return true
end
