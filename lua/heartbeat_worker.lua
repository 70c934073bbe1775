#!lua flags=allow-oom
-- Records that a worker is alive until `length` from now, removes expired workers, and answers the
-- live ones. A repeat extends the time. The key expires with the last worker.
-- KEYS   1 workers
-- ARGV   1 worker
--        2 length in ms
-- Reply  workers, then for each live worker: id, time until it expires in ms
--        foreign, number of the key with another type
local wrong_type = foreign({ 'zset' })
if wrong_type then return wrong_type end

local now = clock()
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
local reply, live = { 'workers' }, redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #live, 2 do
  reply[i + 1] = live[i]
  reply[i + 2] = tonumber(live[i + 1]) - now
end
if live[1] then redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', tonumber(live[#live]))) end
return reply
