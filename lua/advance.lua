#!lua flags=allow-oom
-- Done, then the next claim, for the current token only (I4, I5): moves delivered to a pair that includes it, removes by name the runs
-- inside it, their ids (if they still name those places) and cancelled places; then moves claimed forward, per component, never back.
-- A claim too far past the server's time is refused, the rest is done all the same. Repeating it changes nothing more: what was settled
-- counts only as delivered moves.
-- KEYS   1 meta  2 counts  3 ids  4 cancelled; then for each slice: index, pool
-- ARGV   1 layout version  2 token  3 delivered or empty  4 claim or empty  5 the claim's due in ms  6 how far it may lie past now, in ms
--        7 most cancelled places to remove  8 number of deletes  9 the pair that was told before
--        10 delivered since then  11 cancelled  12 dead-lettered  13 sent back; for each delete: number of its index in KEYS, slice,
--        member, messages; for each id: id, place
-- Reply  done, watermark, cancelled places inside the claim and outside delivered.. | ahead, watermark, now in ms | fenced | unknown |
--        foreign, keys of another type..
local s = shard()
if not s then return { 'unknown' } end
if s.token ~= ARGV[2] then return { 'fenced' } end
local deletes, ids = tonumber(ARGV[8]) > 0, #ARGV > 13 + 4 * tonumber(ARGV[8])
local odd = foreign({ false, deletes and 'hash', ids and 'hash', 'zset' })
if odd then return odd end

-- As doubles: dues that a double cannot hold lie so far from now that rounding does not change the answer.
local delivered, claim, now = ARGV[3], ARGV[4], clock()
local ahead = claim ~= '' and tonumber(ARGV[5]) > now + tonumber(ARGV[6])

local l, at = (delivered ~= '' or deletes) and ledger(s), 14
if delivered ~= '' and delivered ~= s.delivered then
  if not before(delivered:sub(1, 32), s.delivered:sub(1, 32)) and not before(delivered:sub(33), s.delivered:sub(33)) then
    if ARGV[9] ~= s.delivered or before(s.watermark, delivered:sub(33)) then l[7] = 1 end
    for i = 2, 5 do l[i] = l[i] + tonumber(ARGV[8 + i]) end
    s.delivered = delivered
  else
    l[7] = 1
  end
end
for _ = 1, tonumber(ARGV[8]) do
  local messages = tonumber(ARGV[at + 3])
  if remove(tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], messages) then l[6] = l[6] + messages end
  at = at + 4
end
if l then
  right(l, s)
  redis.call('HSET', KEYS[1], 'delivered', s.delivered, 'ledger', written(l, s))
end
while at < #ARGV do
  if redis.call('HGET', KEYS[3], ARGV[at]) == ARGV[at + 1] then redis.call('HDEL', KEYS[3], ARGV[at]) end
  at = at + 2
end

local answer, room = { 'done', s.watermark }, tonumber(ARGV[7])
for _, place in ipairs(redis.call('ZRANGEBYLEX', KEYS[4], '-', '[' .. (claim ~= '' and claim or s.delivered):sub(1, 32))) do
  if not hex(place, 32) or covers(s.delivered, place) then
    if room > 0 then redis.call('ZREM', KEYS[4], place) end
    room = room - 1
  elseif claim ~= '' and covers(claim, place) then
    answer[#answer + 1] = place
  end
end
if ahead then return { 'ahead', s.watermark, now } end
if claim ~= '' then
  local cursor = before(s.claimed:sub(1, 32), claim:sub(1, 32)) and claim:sub(1, 32) or s.claimed:sub(1, 32)
  redis.call('HSET', KEYS[1], 'claimed', cursor .. (before(s.claimed:sub(33), claim:sub(33)) and claim:sub(33) or s.claimed:sub(33)))
end
return answer
