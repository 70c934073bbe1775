-- What the scripts share of slices; it is put in behind each script's first line. A slice takes two keys: its index and, next to it,
-- its pool. A member of the index is the run's least offset, a space and its name.

-- Adds to a field of counts: messages, bytes, and the least offset ever added. A field that cannot be read stands for offset 0, which
-- is never too high.
local function count(field, messages, bytes, least)
  local old = redis.call('HGET', KEYS[2], field) or (least and '0 0 ' .. least) or ''
  local m, b, l = string.match(old, '^(%d+) (%d+) (%x+)$')
  if not hex(l, 16) then m, b, l = 0, 0, string.rep('0', 16) end
  if least and before(least, l) then l = least end
  redis.call('HSET', KEYS[2], field, string.format('%.0f %.0f %s', math.max(m + messages, 0), math.max(b + bytes, 0), l))
end

-- Puts a run into its slice.
local function add(at, slice, member, messages, score, bytes)
  redis.call('ZADD', KEYS[at], score, member)
  redis.call('HSET', KEYS[at + 1], member:sub(18), bytes)
  count(slice, tonumber(messages), #bytes, member:sub(1, 16))
end

-- Takes a run out of its slice, and the slice out of counts with its last run. Answers whether it was there.
local function remove(at, slice, member, messages)
  if redis.call('ZREM', KEYS[at], member) == 0 then return false end
  local bytes = redis.call('HSTRLEN', KEYS[at + 1], member:sub(18))
  redis.call('HDEL', KEYS[at + 1], member:sub(18))
  if redis.call('EXISTS', KEYS[at]) == 0 then
    redis.call('HDEL', KEYS[2], slice)
  else
    count(slice, -messages, -bytes)
  end
  return true
end
