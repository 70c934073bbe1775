#!lua
-- Replaces runs by others with the same messages, except delivered ones: all or nothing, for the
-- current token only. Writes nothing if an input is gone, or if the caller does not know the number
-- of replacements so far. Counts the replacement. A full Redis refuses the whole script. A repeat
-- finds the first new run. The tail stays: a timer lists the shard if a run of the tail is gone. Ids
-- of messages whose key changes get their first name, if they still name the same place, and no other message
-- waits under the first name.
-- KEYS   1 meta
--        2 counts
--        3 ids
--        then for each slice: index, pool
-- ARGV   1 layout version
--        2 token
--        3 number of replacements that the caller knows
--        4 number of runs to remove
--        5 number of ids to rename
--        6 number of names of each id
--        then for each run to remove: number of its index in KEYS, slice, member, messages
--        then for each id to rename: names, place
--        then for each run to add: the same as for a run to remove, score, bytes
-- Reply  done
--        conflict
--        fenced
--        unknown
--        foreign, numbers of the KEYS with another type..
local s = shard()
if not s then return { 'unknown' } end
if s.token ~= ARGV[2] then return { 'fenced' } end
local renamed, names = tonumber(ARGV[5]), tonumber(ARGV[6])
local wrong_types = foreign({ 'hash', 'hash', renamed > 0 and 'hash' })
if wrong_types then return wrong_types end

local first_id = 7 + 4 * tonumber(ARGV[4])
local first_new = first_id + renamed * (names + 1)
if ARGV[first_new] and redis.call('ZSCORE', KEYS[tonumber(ARGV[first_new])], ARGV[first_new + 2]) then
  return { 'done' }
end
local h = lineage(s)
if h[1] ~= ARGV[3] then return { 'conflict' } end
for at = 7, first_id - 1, 4 do
  if not redis.call('ZSCORE', KEYS[tonumber(ARGV[at])], ARGV[at + 2]) then return { 'conflict' } end
end

local l = ledger(s)
for at = 7, first_id - 1, 4 do
  local messages = tonumber(ARGV[at + 3])
  if remove(tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], messages) then l[6] = l[6] + messages end
end
for at = first_id, first_new - 1, names + 1 do
  local place, first = ARGV[at + names], waiting_place(KEYS[3], ARGV[at])
  if (not first or is_claimed(s, first)) and remove_id(KEYS[3], at, names, place) then
    redis.call('HSET', KEYS[3], ARGV[at], place)
  end
end
for at = first_new, #ARGV, 6 do
  add(tonumber(ARGV[at]), unpack(ARGV, at + 1, at + 5))
  l[6] = l[6] - tonumber(ARGV[at + 3])
end
l[6] = math.max(l[6], 0)
h[1] = string.format('%.0f', h[1] + 1)
redis.call('HSET', KEYS[1], 'ledger', ledger_text(l, s), 'history', table.concat(h, ' '))
return { 'done' }
