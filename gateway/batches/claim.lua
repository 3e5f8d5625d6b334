-- Claims batches for a gateway, and renews its leases. All batches of a tenant run in one gateway at a time, so that what a
-- tenant runs at once can be bounded; of tenants that no gateway has, one is taken with each call, so that gateways share
-- them.
--
-- KEYS: the queue (`<tenant>/<batch>` -> `<end of the lease, ms> <gateway>`). ARGV: gateway, ms of a lease, most batches of
-- a gateway. Returns the batches that are the gateway's.
local gateway, lease, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local queue = redis.call('HGETALL', KEYS[1])
local holders, mine, free = {}, {}, {}
for i = 1, #queue, 2 do
  local ends, holder = string.match(queue[i + 1], '^(%d+) (.*)$')
  if tonumber(ends) <= now then
    free[#free + 1] = queue[i]
  else
    holders[string.match(queue[i], '^[^/]+')] = holder
    if holder == gateway then mine[#mine + 1] = queue[i] end
  end
end

-- The oldest first: ids of batches begin with the time.
table.sort(free, function(one, other) return string.match(one, '[^/]+$') < string.match(other, '[^/]+$') end)
local taken = false
for _, name in ipairs(free) do
  local tenant = string.match(name, '^[^/]+')
  if #mine < most and (holders[tenant] == gateway or not holders[tenant] and not taken) then
    taken = taken or not holders[tenant]
    holders[tenant] = gateway
    mine[#mine + 1] = name
  end
end
for _, name in ipairs(mine) do
  redis.call('HSET', KEYS[1], name, string.format('%d %s', now + lease, gateway))
end
return mine
