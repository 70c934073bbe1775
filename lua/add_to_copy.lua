#!lua
-- Adds a part to a shard whose copy did not end: runs, quarantined runs, ids, cancelled places and
-- effects. A repeat changes nothing more. A full Redis refuses the whole script.
-- KEYS   1 meta
--        2 counts
--        3 ids
--        4 cancelled
--        5 effects
--        6 quarantine
--        then for each slice: index, pool
-- ARGV   1 layout version of copies
--        2 number of the copy
--        3 number of runs
--        4 number of quarantined runs
--        5 number of ids
--        6 number of cancelled places
--        then for each run: number of its index in KEYS, slice, member, messages, score, bytes
--        then for each quarantined run: member, messages, bytes
--        then for each id: name, place
--        then the member of each cancelled place
--        then for each effect: field, value
-- Reply  added
--        no_copy
--        foreign, numbers of the KEYS with another type..
local mark = redis.call('HMGET', KEYS[1], 'version', 'copy')
if mark[1] ~= ARGV[1] or mark[2] ~= ARGV[2] then return { 'no_copy' } end
local wrong_types = foreign({ 'hash', 'hash', 'hash', 'zset', 'hash', 'hash' })
if wrong_types then return wrong_types end

local at = 7
for _ = 1, tonumber(ARGV[3]) do
  local key, slice, member, messages, score, bytes = tonumber(ARGV[at]), unpack(ARGV, at + 1, at + 5)
  if not redis.call('ZSCORE', KEYS[key], member) then add(key, slice, member, messages, score, bytes) end
  at = at + 6
end
for _ = 1, tonumber(ARGV[4]) do
  local member, messages, bytes = unpack(ARGV, at, at + 2)
  if redis.call('HSET', KEYS[6], member:sub(18), bytes) == 1 then
    count('quarantine', tonumber(messages), #bytes, member:sub(1, 16))
  end
  at = at + 3
end
for _ = 1, tonumber(ARGV[5]) do
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 1])
  at = at + 2
end
for _ = 1, tonumber(ARGV[6]) do
  redis.call('ZADD', KEYS[4], 0, ARGV[at])
  at = at + 1
end
while at < #ARGV do
  redis.call('HSET', KEYS[5], ARGV[at], ARGV[at + 1])
  at = at + 2
end
return { 'added' }
