#!lua flags=no-writes
-- Lists the runs whose least due is in a range: all of them, or more than the limit, with the first
-- ones among them. Reads the slices in the order of their starts. Once it has read more runs than
-- the limit, it leaves out those that are due later than these. Skips foreign members. Lists
-- nothing if counts has a slice that the caller does not know.
-- KEYS   1 meta
--        2 counts
--        then the index of each slice that may hold such a run
-- ARGV   1 layout version
--        2 least score
--        3 greatest score
--        4 limit
--        5 number of slices in counts, as the caller knows it
--        then these slices
--        then for each index in KEYS: the least score that it can hold
-- Reply  runs, watermark, lineage, then for each run in no order: number of its index in KEYS, member, score
--        new_slices
--        unknown
--        foreign, numbers of the KEYS with another type..
local s = shard()
if not s then return { 'unknown' } end
local wrong_types = foreign({ 'hash', 'hash' }, true)
if wrong_types then return wrong_types end
local known, first_start = {}, 6 + tonumber(ARGV[5])
for i = 6, first_start - 1 do known[ARGV[i]] = true end
for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
  if is_slice(field) and not known[field] then return { 'new_slices' } end
end

-- `scores` holds the least scores so far, after each slice at most one more than the limit. The
-- greatest of them is then the new bound, so a slice adds few runs, however many it has.
local reply, limit, greatest = { 'runs', s.watermark, s.lineage }, tonumber(ARGV[4]), ARGV[3]
local scores, bound = {}, math.huge
for i = first_start, #ARGV do
  if tonumber(ARGV[i]) > tonumber(greatest) then break end
  local index, first, found = i - first_start + 3, 0, 0
  repeat
    local rows = redis.call('ZRANGEBYSCORE', KEYS[index], ARGV[2], greatest, 'WITHSCORES', 'LIMIT', first, limit + 1)
    for j = 1, #rows, 2 do
      if rows[j]:find(' ', 1, true) then
        local last, score = #reply, tonumber(rows[j + 1])
        reply[last + 1], reply[last + 2], reply[last + 3] = index, rows[j], rows[j + 1]
        if score < bound then scores[#scores + 1] = score end
        found = found + 1
      end
    end
    first = first + limit + 1
  until #rows < 2 * (limit + 1) or found > limit
  if #scores > limit + 1 then
    table.sort(scores)
    for j = #scores, limit + 2, -1 do scores[j] = nil end
    bound = scores[limit + 1]
    greatest = string.format('%.17g', bound)
  end
end
return reply
