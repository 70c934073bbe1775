#!lua flags=no-writes
-- Lists the runs whose least due is in a range. Reads the slices in the order of their starts, until
-- more runs than the limit are due before the next slice starts. Skips foreign members.
-- KEYS   1 meta
--        2 counts
--        then for each slice: index, pool
-- ARGV   1 layout version
--        2 least score
--        3 greatest score
--        4 limit
--        then for each slice: the least score that it can hold
-- Reply  runs, watermark, lineage, then for each run in no order: number of its index in KEYS, member, score
--        unknown
--        foreign, numbers of the KEYS with another type..
local s = shard()
if not s then return { 'unknown' } end
local wrong_types = foreign({ 'hash', 'hash' })
if wrong_types then return wrong_types end

local reply, limit = { 'runs', s.watermark, s.lineage }, tonumber(ARGV[4])
for i = 5, #ARGV do
  local due_before = 0
  if #reply > 3 + 3 * limit then
    for j = 6, #reply, 3 do
      if tonumber(reply[j]) < tonumber(ARGV[i]) then due_before = due_before + 1 end
    end
  end
  if due_before > limit then break end

  local index, first, found = 2 * i - 7, 0, 0
  repeat
    local rows = redis.call('ZRANGEBYSCORE', KEYS[index], ARGV[2], ARGV[3], 'WITHSCORES', 'LIMIT', first, limit + 1)
    for j = 1, #rows, 2 do
      if rows[j]:find(' ', 1, true) then
        local last = #reply
        reply[last + 1], reply[last + 2], reply[last + 3] = index, rows[j], rows[j + 1]
        found = found + 1
      end
    end
    first = first + limit + 1
  until #rows < 2 * (limit + 1) or found > limit
end
return reply
