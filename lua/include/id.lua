-- Functions for the ids of messages. `script.rs` puts this file behind the first line of every script.
-- The store may know an id under several names: one for each key of the caller. New entries get the
-- first one.

-- Returns true if messages of the shard are encrypted with a key by which none of the names of an id
-- is hashed. A hash starts with byte 254 and the fingerprint of its key. `first` is the number of
-- the first name in ARGV.
local function lacks_key(first, names)
  local known = {}
  for i = first, first + names - 1 do
    if ARGV[i]:byte() == 254 then known[ARGV[i]:sub(2, 9)] = true end
  end
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    if field:sub(1, 4) == 'key:' and not known[field:sub(5, 12)] then return true end
  end
  return false
end

-- The place of the message that waits under one of the names of an id, and this name.
local function waiting_place(ids, first, names)
  for i = first, first + names - 1 do
    local place = redis.call('HGET', ids, ARGV[i])
    if hex(place, 32) then return place, ARGV[i] end
  end
end
