#!lua flags=no-writes
-- What was appended past a watermark, oldest first: whole batches, at most `limit` runs, but always one batch. The tail is ordered by
-- text, where no number is rounded: each member begins with the end of its batch.
-- KEYS   1 meta  2 tail
-- ARGV   1 layout version  2 after  3 limit
-- Reply  runs, watermark, how far the answer reaches, history, members.. | broken, watermark | unknown

local s = shard()
if not s then return { 'unknown' } end
local after, limit = ARGV[2], tonumber(ARGV[3])
if before(s.watermark, after) or before(after, s.tail_from) then return { 'broken', s.watermark } end

local rows, seen = redis.call('ZRANGEBYLEX', KEYS[2], '(' .. after .. '~', '+', 'LIMIT', 0, limit + 1), s.watermark
if #rows > limit then
  local cut = rows[#rows]:sub(1, 16)
  while rows[1] and rows[#rows]:sub(1, 16) == cut do rows[#rows] = nil end
  if not rows[1] then rows = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. cut, '(' .. cut .. '~') end
  seen = rows[#rows]:sub(1, 16)
end
return { 'runs', s.watermark, seen, s.history, rows }
