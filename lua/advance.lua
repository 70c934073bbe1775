#!lua flags=allow-oom
-- Acknowledges deliveries, then claims the next messages, for the current token only (I4, I5):
-- - moves delivered to a pair that includes the old one;
-- - deletes the named runs, and delivered ids that still name the same place;
-- - removes cancelled places inside delivered, and the effects of requests whose answers are delivered;
-- - moves claimed forward, each component on its own, never back.
-- A claim is refused if the watermark is below the one that the timer has seen, or if the shard is paused. It
-- is also refused if its due time is too far ahead of the server's clock. The other steps are still done. A repeat
-- changes nothing more: outcomes count only when delivered moves.
-- KEYS   1 meta
--        2 counts
--        3 ids
--        4 cancelled
--        5 effects
--        then for each slice: index, pool
-- ARGV   1 layout version
--        2 token
--        3 delivered, or empty
--        4 claim, or empty
--        5 due time of the claim in ms
--        6 how far argument 5 may be ahead of now, in ms
--        7 maximum number of cancelled places to remove
--        8 number of runs to delete
--        9 delivered pair that the caller acknowledged before
--        10 messages delivered since argument 9
--        11 cancelled
--        12 dead-lettered
--        13 retried
--        14 watermark that the timer has seen
--        15 number of delivered ids
--        16 number of names of each id
--        17 number of answers inside the claim
--        18 occurrences of schedules among the messages of arguments 10 to 13
--        then for each run to delete: number of its index in KEYS, slice, member, messages
--        then for each delivered id: names, place
--        then the offset of the request of each answer inside the claim
--        then the offset of the request of each delivered answer
-- Reply  done, watermark, members of `cancelled` inside the claim and outside delivered, mixed with the
--          effects of these answers, and of requests that changed these places: offset, place, letter
--        clock_ahead, watermark, now in ms
--        rolled_back, watermark
--        paused, watermark, pause
--        fenced
--        unknown
--        foreign, numbers of the KEYS with another type..
local s = shard()
if not s then return { 'unknown' } end
if s.token ~= ARGV[2] then return { 'fenced' } end
local deletes, ids, claimed_answers = tonumber(ARGV[8]), tonumber(ARGV[15]), tonumber(ARGV[17])
local wrong_types = foreign({ false, deletes > 0 and 'hash', ids > 0 and 'hash', 'zset', 'hash' })
if wrong_types then return wrong_types end

-- Doubles are exact enough: a due time that a double cannot hold is so far away that rounding does
-- not change the answer.
local delivered, claim, now = ARGV[3], ARGV[4], clock()
local clock_ahead = claim ~= '' and tonumber(ARGV[5]) > now + tonumber(ARGV[6])

-- Move delivered, and count the outcomes since the last acknowledgement.
local l = (delivered ~= '' or deletes > 0) and ledger(s)
if delivered ~= '' and delivered ~= s.delivered then
  local moves_back = before(delivered:sub(1, 32), s.delivered:sub(1, 32))
    or before(delivered:sub(33), s.delivered:sub(33))
  if not moves_back then
    if ARGV[9] ~= s.delivered or before(s.watermark, delivered:sub(33)) then l[7] = 1 end
    for i = 2, 5 do l[i] = l[i] + tonumber(ARGV[8 + i]) end
    -- No append has counted them, and no run holds them.
    for _, i in ipairs({ 1, 6 }) do l[i] = l[i] + tonumber(ARGV[18]) end
    s.delivered = delivered
  else
    l[7] = 1
  end
end

local at, names = 19, tonumber(ARGV[16])
for _ = 1, deletes do
  local messages = tonumber(ARGV[at + 3])
  if remove(tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], messages) then l[6] = l[6] + messages end
  at = at + 4
end
if l then
  reconcile(l, s)
  redis.call('HSET', KEYS[1], 'delivered', s.delivered, 'ledger', ledger_text(l, s))
end
for _ = 1, ids do
  remove_id(KEYS[3], at, names, ARGV[at + names])
  at = at + names + 1
end
for i = at + claimed_answers, #ARGV do
  local named = (redis.call('HGET', KEYS[5], ARGV[i]) or ''):sub(1, 32)
  if redis.call('HGET', KEYS[5], named) == ARGV[i] then redis.call('HDEL', KEYS[5], named) end
  redis.call('HDEL', KEYS[5], ARGV[i])
end

-- Answer the changed places inside the claim, and remove those inside delivered.
local reply, removals_left = { 'done', s.watermark }, tonumber(ARGV[7])
local has_effects = claim ~= '' and redis.call('EXISTS', KEYS[5]) == 1
local function add_effect(request)
  local effect = request and redis.call('HGET', KEYS[5], request)
  if effect and #effect == 33 then reply[#reply + 1] = request .. effect end
end
local last = (claim ~= '' and claim or s.delivered):sub(1, 32)
for _, member in ipairs(redis.call('ZRANGEBYLEX', KEYS[4], '-', '(' .. last .. 'g')) do
  local place = member:sub(1, 32)
  if not (hex(member, 32) or hex(member, 64)) or covers(s.delivered, place) then
    if removals_left > 0 then redis.call('ZREM', KEYS[4], member) end
    removals_left = removals_left - 1
  elseif claim ~= '' and covers(claim, place) then
    reply[#reply + 1] = member
    if has_effects then add_effect(redis.call('HGET', KEYS[5], place)) end
  end
end
for i = at, at + claimed_answers - 1 do
  if has_effects then add_effect(ARGV[i]) end
end

if claim ~= '' then
  if before(s.watermark, ARGV[14]) then return { 'rolled_back', s.watermark } end
  if s.pause:sub(17, 17) == 'p' then return { 'paused', s.watermark, s.pause } end
  if clock_ahead then return { 'clock_ahead', s.watermark, now } end
  local cursor = before(s.claimed:sub(1, 32), claim:sub(1, 32)) and claim:sub(1, 32) or s.claimed:sub(1, 32)
  local watermark = before(s.claimed:sub(33), claim:sub(33)) and claim:sub(33) or s.claimed:sub(33)
  redis.call('HSET', KEYS[1], 'claimed', cursor .. watermark)
end
return reply
