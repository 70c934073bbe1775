-- Functions for slices. `script.rs` puts this file behind the first line of every script. A slice
-- has two keys: its index and, next in KEYS, its pool. A member of the index is the least offset of
-- the run, a space, and the name of the run.

-- Adds messages and bytes to a field of counts, and lowers its least offset to `least`. A field
-- that cannot be read counts as offset 0, which is never too high.
local function count(field, messages, bytes, least)
  local old = redis.call('HGET', KEYS[2], field) or (least and '0 0 ' .. least) or ''
  local m, b, l = string.match(old, '^(%d+) (%d+) (%x+)$')
  if not hex(l, 16) then m, b, l = 0, 0, string.rep('0', 16) end
  if least and before(least, l) then l = least end
  m = math.max(m + messages, 0)
  b = math.max(b + bytes, 0)
  redis.call('HSET', KEYS[2], field, string.format('%.0f %.0f %s', m, b, l))
end

-- Counts messages of a run in a slice for the key that encrypts them. The name of the run ends with the name
-- of its key. The counts are in meta, because an append of ids reads them and must not read all slices.
local function count_key(member, messages)
  local key = member:match('^%x+ [^%-]*%-[^%-]*%-[^%-]*%-[^%-]*%-(.+)$')
  if not key then return end
  local sum = (tonumber(redis.call('HGET', KEYS[1], 'key:' .. key) or '') or 0) + messages
  if sum > 0 then
    redis.call('HSET', KEYS[1], 'key:' .. key, string.format('%.0f', sum))
  else
    redis.call('HDEL', KEYS[1], 'key:' .. key)
  end
end

-- Adds a run to its slice. `at` is the number of the index in KEYS.
local function add(at, slice, member, messages, score, bytes)
  redis.call('ZADD', KEYS[at], score, member)
  redis.call('HSET', KEYS[at + 1], member:sub(18), bytes)
  count(slice, tonumber(messages), #bytes, member:sub(1, 16))
  count_key(member, tonumber(messages))
end

-- Removes a run from its slice. The last run also removes the slice from counts. Returns whether
-- the run was there.
local function remove(at, slice, member, messages)
  if redis.call('ZREM', KEYS[at], member) == 0 then return false end
  local bytes = redis.call('HSTRLEN', KEYS[at + 1], member:sub(18))
  redis.call('HDEL', KEYS[at + 1], member:sub(18))
  if redis.call('EXISTS', KEYS[at]) == 0 then
    redis.call('HDEL', KEYS[2], slice)
  else
    count(slice, -messages, -bytes)
  end
  count_key(member, -messages)
  return true
end
