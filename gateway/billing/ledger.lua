-- Adds entries of one tenant and hour to the usage ledger. Each is counted once, however often it is sent: a writer
-- numbers its entries, and the mark of the last one that was counted lies in the day's hash beside the counters.
--
-- KEYS: the day's entries (stream), the hour's counters, the day's counters (hashes), the tenant's periods (sorted set)
-- ARGV: writer, most entries of the day, hour, and per entry: number, group, entry as JSON, six counters
-- Returns how many entries were new.
local mark = '#' .. ARGV[1]
local applied = tonumber(redis.call('HGET', KEYS[3], mark) or '0')
local counters = {'turns', 'hits', 'input', 'cached', 'output', 'picodollars'}
local new = 0
for i = 4, #ARGV, 9 do
  if tonumber(ARGV[i]) > applied then
    -- The mark goes first: a command that fails ends the script, and what came before it must not be counted again.
    redis.call('HSET', KEYS[3], mark, ARGV[i])
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'entry', ARGV[i + 2])
    for j = 1, #counters do
      local amount = ARGV[i + 2 + j]
      if amount ~= '0' then
        -- As text, because a number in Lua is exact to 2^53 only.
        local field = ARGV[i + 1] .. '|' .. counters[j]
        redis.call('HINCRBY', KEYS[2], field, amount)
        redis.call('HINCRBY', KEYS[3], field, amount)
      end
    end
    new = new + 1
  end
end
if new > 0 then
  local day = string.sub(ARGV[3], 1, 8)
  redis.call('ZADD', KEYS[4], ARGV[3], ARGV[3], day .. '00', day)
end
return new
