#!lua flags=no-writes
-- Reads everything about a shard, in one step. A shard with a slice of a newer version is unknown.
-- KEYS   1 meta
--        2 counts
-- ARGV   1 layout version
-- Reply  state, {identity, watermark, .., pause}: see `state` in include/shard.lua
--        unknown
local s = shard()
if not s then return { 'unknown' } end
local found = state(s)
return found and { 'state', found } or { 'unknown' }
