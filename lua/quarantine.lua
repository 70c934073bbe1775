#!lua flags=allow-oom
-- Moves unreadable runs from their slices to the quarantine, for the current token only, with bytes
-- and counts, so that the lowest pending offset stays below them. Skips runs that are gone. A run
-- without bytes is kept with empty bytes.
-- KEYS   1 meta
--        2 counts
--        3 quarantine
--        then for each slice: index, pool
-- ARGV   1 layout version
--        2 token
--        then for each run: number of its index in KEYS, slice, member, messages
-- Reply  moved, number of runs
--        fenced
--        unknown
--        foreign, numbers of the KEYS with another type..
local s = shard()
if not s then return { 'unknown' } end
if s.token ~= ARGV[2] then return { 'fenced' } end
local wrong_types = foreign({ 'hash', 'hash', 'hash' })
if wrong_types then return wrong_types end

local moved = 0
for at = 3, #ARGV, 4 do
  local key, slice, member, messages = tonumber(ARGV[at]), ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local bytes = redis.call('HGET', KEYS[key + 1], member:sub(18)) or ''
  if remove(key, slice, member, messages) then
    redis.call('HSET', KEYS[3], member:sub(18), bytes)
    count('quarantine', messages, #bytes, member:sub(1, 16))
    moved = moved + 1
  end
end
return { 'moved', moved }
