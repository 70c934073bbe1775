#!lua flags=allow-oom
-- Renames a key of a slice that holds another type than its own, so that the slice can be used again and a person can see what it was.
-- Looks at the type once more: another process may have set it aside, and the slice be in use again.
-- KEYS   1 the key  2 its new name
-- ARGV   1 the type that it should hold
-- Reply  aside, the type that it held | kept
local found = redis.call('TYPE', KEYS[1]).ok
if found == 'none' or found == ARGV[1] then return { 'kept' } end
redis.call('RENAME', KEYS[1], KEYS[2])
return { 'aside', found }
