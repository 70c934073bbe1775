#!lua flags=allow-oom
-- Deletes all keys of a shard, of any type. Deletes nothing if counts names a slice whose
-- keys are not in KEYS.
-- KEYS   1 meta
--        2 counts
--        then all other keys
-- ARGV   the fields of counts that KEYS was made from
-- Reply  erased
--        new_slices
local known = {}
for _, field in ipairs(ARGV) do known[field] = true end
if redis.call('TYPE', KEYS[2]).ok == 'hash' then
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    if not known[field] then return { 'new_slices' } end
  end
end

for _, key in ipairs(KEYS) do redis.call('UNLINK', key) end
return { 'erased' }
