#!lua flags=allow-oom
-- Extends a lease to `length` from now, for the current token only (I5). An expired lease that
-- no other worker took is extended too.
-- KEYS   1 meta
-- ARGV   1 layout version
--        2 token
--        3 length in ms
-- Reply  renewed, now in ms
--        fenced
--        unknown
local s = shard()
if not s then return { 'unknown' } end
if s.token ~= ARGV[2] then return { 'fenced' } end

local now = clock()
set_lease_end(now, ARGV[3])
return { 'renewed', now }
