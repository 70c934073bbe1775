#!lua flags=allow-oom
-- Takes a lease that is free, has expired by the clock of the server, or is held with this token
-- (I5). A lease that ends after twice its length is free too: the clock was set back. A repeat
-- extends it.
-- KEYS   1 meta
--        2 counts
-- ARGV   1 layout version
--        2 token
--        3 length in ms
--        4 identity of the source that the worker reads
-- Reply  granted, now in ms, state
--        held
--        newer, a slice whose level this version does not know
--        other_cluster, identity in meta
--        unknown
local s = shard()
if not s then return { 'unknown' } end
if not may_share_cluster(s.identity, ARGV[4]) then return { 'other_cluster', s.identity } end
local now = clock()
local is_valid = s.lease_end > now and s.lease_end <= now + 2 * s.lease_length
if s.token and s.token ~= ARGV[2] and is_valid then return { 'held' } end
local found, newer = state(s)
if not found then return { 'newer', newer } end

redis.call('HSET', KEYS[1], 'token', ARGV[2])
set_lease_end(now, ARGV[3])
return { 'granted', now, found }
