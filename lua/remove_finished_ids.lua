#!lua flags=allow-oom
-- Removes the ids of messages inside the delivered pair, then the effects of requests whose answers are inside it,
-- one part in each call. A timer that stopped before it removed such an entry has left it. No lease is needed: no
-- cancel can have an effect on such a message, and no claim asks for such an effect. A repeat removes nothing more.
-- KEYS   1 meta
--        2 ids
--        3 effects
-- ARGV   1 layout version
--        2 cursor of the scan, at first 0; `e` in front: in the effects
--        3 number of entries to look at
-- Reply  done, next cursor: 0 after the last part
--        unknown
--        foreign, numbers of the KEYS with another type..
local s = shard()
if not s then return { 'unknown' } end
local wrong_types = foreign({ false, 'hash', 'hash' })
if wrong_types then return wrong_types end

local in_effects, cursor = ARGV[2]:match('^(e?)(%d+)$')
local key = KEYS[in_effects == '' and 2 or 3]
local part = redis.call('HSCAN', key, cursor, 'COUNT', ARGV[3])
for i = 1, #part[2], 2 do
  local field, place = part[2][i], part[2][i + 1]
  if in_effects ~= '' then
    -- The place of the answer: its due time, and the offset of the request, which is the field or the value.
    place = '4000000000000000' .. (#field == 16 and field or place)
  end
  if hex(place, 32) and covers(s.delivered, place) then redis.call('HDEL', key, field) end
end
if in_effects == '' and part[1] == '0' then return { 'done', 'e0' } end
return { 'done', part[1] == '0' and part[1] or in_effects .. part[1] }
