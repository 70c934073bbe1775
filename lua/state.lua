#!lua flags=no-writes
-- Reads everything about a shard, in one step. A shard with a slice of a newer version is unknown.
-- KEYS   1 meta
--        2 counts
-- ARGV   1 layout version
-- Reply  state, {identity, watermark, claimed, delivered, hold, possibly_delivered, ledger, {field of counts, its value..}, {field of a key, its value..}, pause}
--        unknown
local s = shard()
if not s then return { 'unknown' } end
local found = state(s)
return found and { 'state', found } or { 'unknown' }
