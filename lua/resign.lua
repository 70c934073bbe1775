#!lua flags=allow-oom
-- Counts a worker among those that live no longer.
-- KEYS   1 workers
-- ARGV   1 worker
-- Reply  resigned | foreign, 1
local odd = foreign({ 'zset' })
if odd then return odd end
redis.call('ZREM', KEYS[1], ARGV[1])
return { 'resigned' }
