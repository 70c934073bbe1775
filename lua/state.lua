#!lua flags=no-writes
-- What is known of a shard, in one step.
-- KEYS   1 meta  2 counts
-- ARGV   1 layout version
-- Reply  state, {identity, watermark, claimed, delivered, ledger, history, {field of counts, its value}..} | unknown
local s = shard()
if not s then return { 'unknown' } end
return { 'state', state(s) }
