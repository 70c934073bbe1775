#!lua
-- Appends the batch of the source offsets from..to: applies changes of ids in offset order, keeps the
-- effects of requests with answers, adds the runs, records the epoch and a pause, and moves the watermark. Refuses
-- if the watermark is not `from` (I2), or if another ingress has appended since the one that read the
-- batch. A full Redis refuses the whole script. The repeat of a stored append finds the watermark at
-- `to`. A claimed or delivered message cannot be changed any more; see `!` below.
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
--        9 pause after the last control record of the batch, or empty
--        then for each id change: names, change, `!` if it changes a claimed message too or `?` if the reply
--          tells its effect, followed by its offset if it asks for an answer. A change is a letter and its fields:
--            s  schedule: place
--            r  retry: place
--            k  schedule that keeps a first message: place, timestamp. The first is due later than the timestamp
--            c  cancel
--            m  reschedule: its offset, the new due time
--            d  record that was delivered before
--            t  message that takes the place of another one: place, offset of the other one. It is cancelled if
--               the other one does not wait under the id any more
--            p  such a message that was delivered before: offset of the other one
--        then for each run: number of its index in KEYS, slice, member, messages, score, bytes
-- Reply  done, cancelled, missed, effects: for each such change that names another message, one text of its place,
--          c or l, and the number of the change, from 0. c: it is changed, and no loss can hide its delivery
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

local cancelled, missed, names, at, reply = 0, 0, tonumber(ARGV[8]), 10, { 'done', 0, 0 }
if changes > 0 and lacks_key(at, names) then return { 'unknown' } end
for number = 1, changes do
  local kind, fields, request = ARGV[at + names]:sub(1, 1), ARGV[at + names]:sub(2), ARGV[at + names + 1]
  local is_retry, keeps_first = kind == 'r', kind == 'k'
  local place = (kind == 's' or kind == 't' or is_retry or keeps_first) and fields:sub(1, 32)
  local of = kind == 't' and fields:sub(33) or kind == 'p' and fields
  local timestamp, reschedule = keeps_first and fields:sub(33), kind == 'm' and fields
  local changes_other = not (is_retry or keeps_first)
  local takes_claimed, tells, named, is_changed = request:sub(1, 1) == '!', request:sub(1, 1) == '?', nil, false
  local in_time, first, is_taken = false, nil, not of
  request = request:sub(-16)
  for i = at, at + names - 1 do
    local waiting = waiting_place(KEYS[4], ARGV[i])
    local is_other = waiting and waiting ~= place and (not of or waiting:sub(17) == of)
    local waits = is_other and not covers(s.delivered, waiting)
    local may_change = waits and changes_other and (takes_claimed or not covers(s.claimed, waiting))
      and not (reschedule and not before(waiting:sub(1, 16), reschedule:sub(17)))
    if may_change then
      for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[5], '[' .. waiting, '(' .. waiting .. 'g')) do
        redis.call('ZREM', KEYS[5], member)
        redis.call('HDEL', KEYS[6], waiting)
      end
      redis.call('ZADD', KEYS[5], 0, waiting .. (reschedule or ''))
    end
    if may_change and not covers(s.claimed, waiting) then
      if not reschedule then cancelled = cancelled + 1 end
      in_time = true
    end
    -- The effect names a changed message rather than one that was too late.
    if is_other and changes_other and not is_changed then named, is_changed = waiting, may_change end
    local keeps_id = waits
      and (is_retry and not covers(s.claimed, waiting) or keeps_first and before(timestamp, waiting:sub(1, 16)))
    if keeps_id then first = first or waiting end
    if may_change or place and waiting == place then is_taken = true end
    if not reschedule and (may_change or waiting and place and not keeps_id and not of) then redis.call('HDEL', KEYS[4], ARGV[i]) end
  end
  if keeps_first and first then
    redis.call('ZADD', KEYS[5], 0, place)
    cancelled, named = cancelled + 1, first
  end
  if place and not is_taken then
    redis.call('ZADD', KEYS[5], 0, place)
    cancelled = cancelled + 1
  end
  if (kind == 'c' or reschedule) and not in_time then missed = missed + 1 end
  if named and hex(request, 16) then
    redis.call('HSET', KEYS[6], request, named .. (is_changed and 'c' or 'l'))
    if is_changed then redis.call('HSET', KEYS[6], named, request) end
  end
  if named and tells then
    local is_certain = is_changed and not covers(s.possibly_delivered, named)
    reply[#reply + 1] = named .. (is_certain and 'c' or 'l') .. number - 1
  end
  if place and is_taken and not first then redis.call('HSET', KEYS[4], ARGV[at], place) end
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
if is_newer_pause(ARGV[9], s.pause) then redis.call('HSET', KEYS[1], 'pause', ARGV[9]) end
s.watermark = ARGV[3]
redis.call('HSET', KEYS[1], 'watermark', s.watermark, 'ledger', ledger_text(l, s))
reply[2], reply[3] = cancelled, missed
return reply
