#!lua flags=allow-oom
-- Ends the hold of a shard: its claims no longer wait for the source log. Sets the field `hold` to
-- `-`, which the next append removes.
-- KEYS   1 meta
-- ARGV   1 layout version
-- Reply  ended
--        unknown
local s = shard()
if not s then return { 'unknown' } end

redis.call('HSET', KEYS[1], 'hold', '-')
return { 'ended' }
