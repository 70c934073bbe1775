-- Functions for the meta data of a shard. `script.rs` puts this file behind the first line of every
-- script. KEYS[1] is the meta key and ARGV[1] the layout version. Functions that use counts take
-- its key from KEYS[2].

-- Returns true if hex text a is less than b; both have the same length. Compares eight digits at a
-- time, because a double holds eight digits exactly and sixteen not. Lua's own `<` depends on the
-- locale of the server: in some, "aa" is one letter.
local function before(a, b)
  if a == b then return false end
  for i = 1, #a, 8 do
    local x, y = a:sub(i, i + 7), b:sub(i, i + 7)
    if x ~= y then return tonumber(x, 16) < tonumber(y, 16) end
  end
  return false
end

-- Returns true if a pair (claimed, delivered) includes a place. A place is due and offset, 16
-- digits each. A pair is the due and offset of its cursor, then its watermark, 16 digits each.
local function covers(pair, place)
  return before(place:sub(17), pair:sub(33)) and not before(pair:sub(1, 32), place)
end

local function hex(text, width) return text and #text == width and not text:find('%X') end

-- Returns true if two identities may belong to one installation of the broker. The rule is
-- `may_share_cluster` in src/model/shard.rs.
local function may_share_cluster(a, b)
  local cluster, topic = a:match('^([^:]*):(.*)$')
  local other_cluster, other_topic = b:match('^([^:]*):(.*)$')
  cluster, topic, other_cluster, other_topic = cluster or '-', topic or a, other_cluster or '-', other_topic or b
  return cluster == other_cluster or cluster == '-' or other_cluster == '-'
    or (topic ~= '-' and topic == other_topic)
end

-- Returns true for the text of a pause: 16 hex digits, p or r, four numbers, and base64.
local function is_pause(text)
  return hex(text:sub(1, 16), 16) and text:find('^[pr]%-?%d+:%-?%d+:%d+:%-?%d+:[%w+/]*$', 17)
end

-- The fields of meta; nil if there is no shard, or none that this layout version can read. A pause that this
-- version cannot read may be one of a newer version, so the shard must not be delivered.
local function shard()
  local m = redis.call('HMGET', KEYS[1], 'version', 'identity', 'watermark', 'claimed', 'delivered',
    'tail_from', 'token', 'ledger', 'history', 'hold', 'possibly_delivered', 'pause')
  if m[1] ~= ARGV[1] or not m[2] then return nil end
  if not (hex(m[3], 16) and hex(m[4], 48) and hex(m[5], 48) and hex(m[6], 16)) then return nil end
  if m[12] and m[12] ~= '' and not is_pause(m[12]) then return nil end
  return {
    identity = m[2],
    watermark = m[3],
    claimed = m[4],
    delivered = m[5],
    tail_from = m[6],
    token = m[7],
    ledger = m[8],
    lineage = m[9] or '',
    hold = (m[10] == '-' or hex(m[10], 16)) and m[10] or string.rep('0', 16),
    pause = m[12] or '',
    possibly_delivered = hex(m[11], 48) and m[11] or string.rep('0', 16) .. string.rep('f', 16) .. string.rep('0', 16),
  }
end

-- Returns true if pause text a is of a later control record than b; either may be empty.
local function is_newer_pause(a, b) return a ~= '' and (b == '' or before(b:sub(1, 16), a:sub(1, 16))) end

-- Returns true if a message at this place is claimed or delivered.
local function is_claimed(s, place) return covers(s.claimed, place) or covers(s.delivered, place) end

-- Returns true if a field of counts is a slice of any version: a small letter and a number. Other
-- fields are the quarantine, or foreign.
local function is_slice(field)
  return #field < 20 and (field:find('^[a-z]%-?[1-9]%d*$') or field:find('^[a-z]0$'))
end

-- The reply that describes a shard: identity, watermark, claimed, delivered, hold, possibly_delivered,
-- ledger, fields and values of counts, fields and values of the keys in meta, pause. If this version does not know the level of a
-- slice, nil and that slice: a newer version wrote it, and only a newer one may deliver the shard.
local function state(s)
  local counts = redis.call('HGETALL', KEYS[2])
  for i = 1, #counts, 2 do
    if is_slice(counts[i]) and not counts[i]:find('^[nfdhm]') then return nil, counts[i] end
  end
  local meta, keys = redis.call('HGETALL', KEYS[1]), {}
  for i = 1, #meta, 2 do
    if meta[i]:sub(1, 4) == 'key:' then keys[#keys + 1], keys[#keys + 2] = meta[i], meta[i + 1] end
  end
  return { s.identity, s.watermark, s.claimed, s.delivered, s.hold, s.possibly_delivered, s.ledger or '', counts, keys, s.pause }
end

-- The clock of the server in milliseconds: far below 2^53, so a double holds it.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A reply that names the keys with a foreign type; nil if there are none. `types` holds the
-- expected type of each fixed key, or false for a key that the script does not touch. Behind the
-- fixed keys, index and pool of slices alternate, or all keys are indexes.
local function foreign(types, only_indexes)
  local reply = { 'foreign' }
  for i, key in ipairs(KEYS) do
    local expected = types[i]
    if expected == nil then expected = (only_indexes or (i - #types) % 2 == 1) and 'zset' or 'hash' end
    local found = expected and redis.call('TYPE', key).ok
    if expected and found ~= 'none' and found ~= expected then reply[#reply + 1] = i end
  end
  return reply[2] and reply
end
