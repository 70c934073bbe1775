#!lua flags=allow-oom
-- Removes a worker, and the clusters that it named, from the live workers.
-- KEYS   1 workers
-- ARGV   1 worker
-- Reply  removed
--        foreign, number of the key with another type
local wrong_type = foreign({ 'zset' })
if wrong_type then return wrong_type end

for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  if member:match('^%x*') == ARGV[1] then redis.call('ZREM', KEYS[1], member) end
end
return { 'removed' }
