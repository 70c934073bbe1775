#!lua flags=allow-oom
-- Removes a worker from the live workers.
-- KEYS   1 workers
-- ARGV   1 worker
-- Reply  removed
--        foreign, number of the key with another type
local wrong_type = foreign({ 'zset' })
if wrong_type then return wrong_type end

redis.call('ZREM', KEYS[1], ARGV[1])
return { 'removed' }
