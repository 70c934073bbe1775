#!lua flags=allow-oom
-- Removes the ids of messages inside the delivered pair, in one part of the ids. A timer that stopped before it
-- removed such an id has left it. No lease is needed: no cancel can have an effect on such a message. A repeat
-- removes nothing more.
-- KEYS   1 meta
--        2 ids
-- ARGV   1 layout version
--        2 cursor of the scan, at first 0
--        3 number of ids to look at
-- Reply  done, next cursor: 0 after the last part
--        unknown
--        foreign, numbers of the KEYS with another type..
local s = shard()
if not s then return { 'unknown' } end
local wrong_types = foreign({ false, 'hash' })
if wrong_types then return wrong_types end

local part = redis.call('HSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
for i = 1, #part[2], 2 do
  local id, place = part[2][i], part[2][i + 1]
  if hex(place, 32) and covers(s.delivered, place) then redis.call('HDEL', KEYS[2], id) end
end
return { 'done', part[1] }
