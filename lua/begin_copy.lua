#!lua
-- Starts a copy of a shard from another store: writes only the layout version of copies, and which copy
-- it is. So the shard is unknown to all other scripts. A full Redis refuses the whole script.
-- KEYS   1 meta
--        2 counts
--        3 tail
--        4 ids
--        5 cancelled
--        6 quarantine
--        7 effects
-- ARGV   1 layout version of copies
--        2 number of the copy
-- Reply  started
--        exists
for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 then return { 'exists' } end
end

redis.call('HSET', KEYS[1], 'version', ARGV[1], 'copy', ARGV[2])
return { 'started' }
