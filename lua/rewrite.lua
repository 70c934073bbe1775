#!lua
-- Puts runs in the place of others that hold the same messages, for the current token only, all or nothing: if one of the others is not
-- there, or there were more or fewer rewrites than are known of, nothing is written. It is counted. Refused whole on a full Redis. The
-- repeat of one that was done finds the first of its new runs. The tail is left alone: runs that it names and that are gone are found by
-- listing.
-- KEYS   1 meta  2 counts; then for each slice: index, pool
-- ARGV   1 layout version  2 token  3 rewrites that are known of  4 number of runs that go; for each of them: number of its index in KEYS,
--        slice, member, messages; for each run that comes: the same four, score, bytes
-- Reply  done | changed | fenced | unknown | foreign, keys of another type..
local s = shard()
if not s then return { 'unknown' } end
if s.token ~= ARGV[2] then return { 'fenced' } end
local odd = foreign({ 'hash', 'hash' })
if odd then return odd end

local first = 5 + 4 * tonumber(ARGV[4])
if ARGV[first] and redis.call('ZSCORE', KEYS[tonumber(ARGV[first])], ARGV[first + 2]) then return { 'done' } end
local h = history(s)
if h[4] ~= ARGV[3] then return { 'changed' } end
for at = 5, first - 1, 4 do
  if not redis.call('ZSCORE', KEYS[tonumber(ARGV[at])], ARGV[at + 2]) then return { 'changed' } end
end
local l = ledger(s)
for at = 5, first - 1, 4 do
  local messages = tonumber(ARGV[at + 3])
  if remove(tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], messages) then l[6] = l[6] + messages end
end
for at = first, #ARGV, 6 do
  add(tonumber(ARGV[at]), unpack(ARGV, at + 1, at + 5))
  l[6] = l[6] - tonumber(ARGV[at + 3])
end
l[6] = math.max(l[6], 0)
h[4] = string.format('%.0f', h[4] + 1)
redis.call('HSET', KEYS[1], 'ledger', written(l, s), 'history', table.concat(h, ' '))
return { 'done' }
