#!lua flags=allow-oom
-- Notes that a worker lives until `length` from the server's now, forgets those whose time has passed, and answers who is left. Repeating
-- it lets the worker live on. The key goes when the last of them has passed.
-- KEYS   1 workers
-- ARGV   1 worker  2 length in ms
-- Reply  workers, worker, for how long yet in ms, ... | foreign, 1
local odd = foreign({ 'zset' })
if odd then return odd end
local now = clock()
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
local answer, living = { 'workers' }, redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #living, 2 do
  answer[i + 1], answer[i + 2] = living[i], tonumber(living[i + 1]) - now
end
if living[1] then redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', tonumber(living[#living]))) end
return answer
