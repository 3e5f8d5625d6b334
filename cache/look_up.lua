-- Read one answer and the tenant's epoch at one moment.
-- KEYS: 1 the tenant's epoch (STRING), 2 the answer (HASH)
-- Returns the epoch and the answer's fields and values.
return { redis.call("GET", KEYS[1]), redis.call("HGETALL", KEYS[2]) }
