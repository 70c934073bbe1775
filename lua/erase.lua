#!lua flags=allow-oom
-- Deletes all keys of a shard, whatever they hold - unless counts names a slice whose keys are not among those given.
-- KEYS   1 meta  2 counts; then all others
-- ARGV   the fields of counts that KEYS was made from
-- Reply  erased | again
local known = {}
for _, field in ipairs(ARGV) do known[field] = true end
if redis.call('TYPE', KEYS[2]).ok == 'hash' then
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    if not known[field] then return { 'again' } end
  end
end
for _, key in ipairs(KEYS) do redis.call('UNLINK', key) end
return { 'erased' }
