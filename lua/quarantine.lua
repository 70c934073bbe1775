#!lua flags=allow-oom
-- Sets unreadable runs aside, for the current token only: out of their slices into quarantine, with their bytes and their counts, so that
-- lowest pending stays below them. A run that is gone is left out; one without bytes is kept with none.
-- KEYS   1 meta  2 counts  3 quarantine; then for each slice: index, pool
-- ARGV   1 layout version  2 token; then for each run: number of its index in KEYS, slice, member, messages
-- Reply  moved, how many | fenced | unknown | foreign, keys of another type..
local s = shard()
if not s then return { 'unknown' } end
if s.token ~= ARGV[2] then return { 'fenced' } end
local odd = foreign({ 'hash', 'hash', 'hash' })
if odd then return odd end

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
