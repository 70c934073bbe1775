#!lua flags=no-writes
-- Reads the runs appended past a watermark, oldest first: whole batches, at most `limit` runs, but
-- at least one batch. Each member starts with the end of its batch in hex. The tail is ordered by
-- text, because a score would round the number.
-- KEYS   1 meta
--        2 tail
--        3 ids
-- ARGV   1 layout version
--        2 after
--        3 limit
-- Reply  runs, watermark, watermark up to which the reply is complete, lineage, hold (or `no_ids`:
--          no later record can cancel a message), pause, {members..}
--        out_of_range, watermark
--        unknown
local s = shard()
if not s then return { 'unknown' } end
local after, limit = ARGV[2], tonumber(ARGV[3])
if before(s.watermark, after) or before(after, s.tail_from) then return { 'out_of_range', s.watermark } end

local complete_to = s.watermark
local rows = redis.call('ZRANGEBYLEX', KEYS[2], '(' .. after .. '~', '+', 'LIMIT', 0, limit + 1)
if #rows > limit then
  local cut = rows[#rows]:sub(1, 16)
  while rows[1] and rows[#rows]:sub(1, 16) == cut do rows[#rows] = nil end
  if not rows[1] then rows = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. cut, '(' .. cut .. '~') end
  complete_to = rows[#rows]:sub(1, 16)
end
local hold = s.hold
if hold ~= '-' and before(s.watermark, hold) and redis.call('EXISTS', KEYS[3]) == 0 then hold = 'no_ids' end
return { 'runs', s.watermark, complete_to, s.lineage, hold, s.pause, rows }
