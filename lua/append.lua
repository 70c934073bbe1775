#!lua
-- Appends the batch of the source offsets from..to: applies ids and cancels in offset order, keeps the
-- effects of requests with answers, adds the runs, records the epoch, and moves the watermark. Refuses
-- if the watermark is not `from` (I2), or if another ingress has appended since the one that read the
-- batch. A full Redis refuses the whole script. The repeat of a stored append finds the watermark at
-- `to`. A claimed or delivered message cannot be cancelled or replaced any more; see `!` below.
-- KEYS   1 meta
--        2 counts
--        3 tail
--        4 ids
--        5 cancelled
--        6 effects
--        then for each slice: index, pool
-- ARGV   1 layout version
--        2 from
--        3 to
--        4 epoch of the ingress that read the batch
--        5 maximum number of runs in the tail
--        6 number of id changes
--        7 identity of the source that was read: a shard with another one is unknown
--        8 number of names of each id, for each key of the caller; a shard that uses another key is
--          unknown if ids change
--        then for each id change: names, place (empty: cancel; `-`: a record that was delivered before),
--          `!` if it cancels a claimed message too, followed by its offset if it asks for an answer
--        then for each run: number of its index in KEYS, slice, member, messages, score, bytes
-- Reply  done, cancelled, missed
--        watermark_mismatch, watermark
--        unknown
--        foreign, numbers of the KEYS with another type..
local s = shard()
if not s or s.identity ~= ARGV[7] then return { 'unknown' } end
if s.watermark ~= ARGV[2] then return { 'watermark_mismatch', s.watermark } end
local h = lineage(s)
if has_followed(h, ARGV[4]) then return { 'watermark_mismatch', s.watermark } end
local changes = tonumber(ARGV[6])
local wrong_types = foreign({ false, 'hash', 'zset', changes > 0 and 'hash', changes > 0 and 'zset', changes > 0 and 'hash' })
if wrong_types then return wrong_types end

local cancelled, missed, names, at = 0, 0, tonumber(ARGV[8]), 9
if changes > 0 and lacks_key(at, names) then return { 'unknown' } end
for _ = 1, changes do
  local place, request, in_time = ARGV[at + names], ARGV[at + names + 1], false
  local takes_claimed, named, is_cancelled = request:sub(1, 1) == '!', nil, false
  request = request:sub(-16)
  for i = at, at + names - 1 do
    local waiting = waiting_place(KEYS[4], ARGV[i])
    local is_other = waiting and waiting ~= place
    local is_cancellable = is_other and not covers(s.delivered, waiting) and (takes_claimed or not covers(s.claimed, waiting))
    if is_cancellable then redis.call('ZADD', KEYS[5], 0, waiting) end
    if is_cancellable and not covers(s.claimed, waiting) then
      cancelled = cancelled + 1
      in_time = true
    end
    -- The effect names a cancelled message rather than one that was too late.
    if is_other and not is_cancelled then named, is_cancelled = waiting, is_cancellable end
    if is_cancellable or waiting and hex(place, 32) then redis.call('HDEL', KEYS[4], ARGV[i]) end
  end
  if place == '' and not in_time then missed = missed + 1 end
  if named and hex(request, 16) then
    redis.call('HSET', KEYS[6], request, named .. (is_cancelled and 'c' or 'l'))
    if is_cancelled then redis.call('HSET', KEYS[6], named, request) end
  end
  if hex(place, 32) then redis.call('HSET', KEYS[4], ARGV[at], place) end
  at = at + names + 2
end

local l = ledger(s)
while at < #ARGV do
  local key, slice, member, messages, score, bytes = tonumber(ARGV[at]), unpack(ARGV, at + 1, at + 5)
  add(key, slice, member, messages, score, bytes)
  l[1] = l[1] + tonumber(messages)
  redis.call('ZADD', KEYS[3], 0, table.concat({ ARGV[3], member, score, slice }, ' '))
  at = at + 6
end

-- Trim the tail. `tail_from` tells from which watermark on it is complete, so a batch without runs
-- leaves no gap.
local surplus = redis.call('ZCARD', KEYS[3]) - tonumber(ARGV[5])
if surplus > 0 then
  local last = redis.call('ZRANGE', KEYS[3], surplus - 1, surplus - 1)[1]
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, surplus - 1)
  redis.call('HSET', KEYS[1], 'tail_from', last:sub(1, 16))
end

if h[2] ~= ARGV[4] then
  redis.call('HSET', KEYS[1], 'history', with_epoch(h, ARGV[4], ARGV[2]))
end
if s.hold == '-' then redis.call('HDEL', KEYS[1], 'hold') end
s.watermark = ARGV[3]
redis.call('HSET', KEYS[1], 'watermark', s.watermark, 'ledger', ledger_text(l, s))
return { 'done', cancelled, missed }
