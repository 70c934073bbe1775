#!lua flags=allow-oom
-- Records that a worker is alive until `length` from now, removes expired workers, and answers the
-- live ones. A repeat extends the time. The key expires with the last worker. Refuses a worker that
-- shares none of its clusters with the other live workers, if both sides name some.
-- KEYS   1 workers
-- ARGV   1 worker
--        2 length in ms
--        then for each cluster that the worker reads from: its id
-- Reply  workers, then for each live worker: id, time until it expires in ms
--        other_clusters, ids of the clusters of the other workers..
--        foreign, number of the key with another type
local wrong_type = foreign({ 'zset' })
if wrong_type then return wrong_type end

local now = clock()
local function remove_expired()
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
end

remove_expired()
local own, outdated, is_shared, refused = {}, {}, #ARGV == 2, { 'other_clusters' }
for i = 3, #ARGV do own[ARGV[i]] = true end
for _, member in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local worker, cluster = member:match('^(%x+) (.*)$')
  if worker == ARGV[1] then
    outdated[#outdated + 1] = member
  elseif worker then
    is_shared = is_shared or own[cluster]
    refused[#refused + 1] = cluster
  end
end
if not is_shared and refused[2] then return refused end

for _, member in ipairs(outdated) do redis.call('ZREM', KEYS[1], member) end
local ends = string.format('%.0f', now + tonumber(ARGV[2]))
redis.call('ZADD', KEYS[1], ends, ARGV[1])
for i = 3, #ARGV do redis.call('ZADD', KEYS[1], ends, ARGV[1] .. ' ' .. ARGV[i]) end
remove_expired()

local reply, live = { 'workers' }, redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #live, 2 do
  if not live[i]:find(' ', 1, true) then
    reply[#reply + 1] = live[i]
    reply[#reply + 1] = tonumber(live[i + 1]) - now
  end
end
if live[1] then redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', tonumber(live[#live]))) end
return reply
