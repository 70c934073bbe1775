#!lua flags=allow-oom
-- Renames a key of a slice that holds a value of another type, so that the slice works again and
-- the value can be inspected. Checks the type once more: another process may have renamed the key
-- before, and the slice may be in use again.
-- KEYS   1 key of the slice
--        2 new name for the foreign value
-- ARGV   1 type that the key should have
-- Reply  renamed, type that the key had
--        kept
local found = redis.call('TYPE', KEYS[1]).ok
if found == 'none' or found == ARGV[1] then return { 'kept' } end

redis.call('RENAME', KEYS[1], KEYS[2])
return { 'renamed', found }
