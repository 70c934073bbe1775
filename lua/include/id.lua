-- Functions for the ids of messages. `script.rs` puts this file behind the first line of every script.
-- The store may know an id under several names: one for each key of the caller. New entries get the
-- first one. Processes with other keys may have left several names of one id, for different messages.

-- Returns true if messages of the shard are encrypted with a key by which none of the names of an id
-- is hashed. A hash starts with byte 254 and the fingerprint of its key. `first` is the number of
-- the first name in ARGV.
local function lacks_key(first, names)
  local known = {}
  for i = first, first + names - 1 do
    if ARGV[i]:byte() == 254 then known[ARGV[i]:sub(2, 9)] = true end
  end
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if field:sub(1, 4) == 'key:' and not known[field:sub(5, 12)] then return true end
  end
  return false
end

-- The place of the message that waits under a name; nil if there is none.
local function waiting_place(ids, name)
  local place = redis.call('HGET', ids, name)
  return hex(place, 32) and place
end

-- Removes the names of an id that name this place. Returns whether there were any.
local function remove_id(ids, first, names, place)
  local was_there = false
  for i = first, first + names - 1 do
    if waiting_place(ids, ARGV[i]) == place then
      redis.call('HDEL', ids, ARGV[i])
      was_there = true
    end
  end
  return was_there
end
