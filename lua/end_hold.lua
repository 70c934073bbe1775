#!lua flags=allow-oom
-- Ends the wait of the claims of a shard for the source log, until the next append.
-- KEYS   1 meta
-- ARGV   1 layout version
-- Reply  ended
--        unknown
local s = shard()
if not s then return { 'unknown' } end

redis.call('HSET', KEYS[1], 'hold', '-')
return { 'ended' }
