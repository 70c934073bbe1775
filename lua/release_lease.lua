#!lua flags=allow-oom
-- Gives a lease back early, for the current token only: the lease of another holder stays (I5).
-- KEYS   1 meta
-- ARGV   1 layout version
--        2 token
-- Reply  released
--        fenced
--        unknown
local s = shard()
if not s then return { 'unknown' } end
if s.token ~= ARGV[2] then return { 'fenced' } end

redis.call('HDEL', KEYS[1], 'token')
return { 'released' }
