#!lua flags=allow-oom
-- Takes a lease without a holder, or with the holder that the caller names because its session has
-- ended (I5). A repeat changes nothing. A holder of version 0.1.0 has ended: no session begins
-- while such a worker lives.
-- KEYS   1 meta
--        2 counts
-- ARGV   1 layout version
--        2 token
--        3 identity of the source that the worker reads
--        4 token of a holder whose session has ended, or empty
-- Reply  granted, now in ms, state
--        held, token of the holder
--        newer, a slice whose level this version does not know
--        other_cluster, identity in meta
--        unknown
local s = shard()
if not s then return { 'unknown' } end
if not may_share_cluster(s.identity, ARGV[3]) then return { 'other_cluster', s.identity } end
local is_held = s.token and s.token ~= ARGV[2] and s.token ~= ARGV[4]
if is_held and s.token:find('.', 1, true) then return { 'held', s.token } end
local found, newer = state(s)
if not found then return { 'newer', newer } end

redis.call('HSET', KEYS[1], 'token', ARGV[2])
return { 'granted', clock(), found }
