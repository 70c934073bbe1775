#!lua
-- Appends the batch that covers the source offsets from..to if the shard's watermark is `from` (I2): applies ids and cancels in offset
-- order, adds the runs, notes the reading, moves the watermark last. Refused whole on a full Redis. The repeat of a stored append finds the
-- watermark at `to`. A message inside claimed or delivered can no longer be cancelled or replaced.
-- KEYS   1 meta  2 counts  3 tail  4 ids  5 cancelled; then for each slice: index, pool
-- ARGV   1 layout version  2 from  3 to  4 the reading that it is of  5 most runs in the tail  6 number of changes
--        for each change: id, place (empty: cancel); for each run: number of its index in KEYS, slice, member, messages, score, bytes
-- Reply  done, cancelled, missed | elsewhere, watermark | unknown | foreign, keys of another type..
local s = shard()
if not s then return { 'unknown' } end
if s.watermark ~= ARGV[2] then return { 'elsewhere', s.watermark } end
local changes = tonumber(ARGV[6]) > 0
local odd = foreign({ false, 'hash', 'zset', changes and 'hash', changes and 'zset' })
if odd then return odd end

local cancelled, missed, at = 0, 0, 7
for _ = 1, tonumber(ARGV[6]) do
  local id, place = ARGV[at], ARGV[at + 1]
  local waits = redis.call('HGET', KEYS[4], id)
  if hex(waits, 32) and waits ~= place and not covers(s.claimed, waits) and not covers(s.delivered, waits) then
    redis.call('ZADD', KEYS[5], 0, waits)
    redis.call('HDEL', KEYS[4], id)
    cancelled = cancelled + 1
  elseif place == '' then
    missed = missed + 1
  end
  if place ~= '' then redis.call('HSET', KEYS[4], id, place) end
  at = at + 2
end

local l = ledger(s)
while at < #ARGV do
  local key, slice, member, messages, score, bytes = tonumber(ARGV[at]), unpack(ARGV, at + 1, at + 5)
  add(key, slice, member, messages, score, bytes)
  l[1] = l[1] + tonumber(messages)
  redis.call('ZADD', KEYS[3], 0, table.concat({ ARGV[3], member, score, slice }, ' '))
  at = at + 6
end

-- The tail says from which watermark on it is complete, so that a batch without runs is no gap in it.
local surplus = redis.call('ZCARD', KEYS[3]) - tonumber(ARGV[5])
if surplus > 0 then
  local last = redis.call('ZRANGE', KEYS[3], surplus - 1, surplus - 1)[1]
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, surplus - 1)
  redis.call('HSET', KEYS[1], 'tail_from', last:sub(1, 16))
end
local h = history(s)
if h[1] ~= ARGV[4] then redis.call('HSET', KEYS[1], 'history', table.concat({ ARGV[4], h[1], ARGV[2], h[4] }, ' ')) end
s.watermark = ARGV[3]
redis.call('HSET', KEYS[1], 'watermark', s.watermark, 'ledger', written(l, s))
return { 'done', cancelled, missed }
