-- What the scripts share of a shard; it is put in behind each script's first line. KEYS[1] is the shard's meta, KEYS[2] its counts,
-- ARGV[1] the layout version.

-- Hex of one width is compared by number, in the first eight digits that differ: Lua's own `<` asks the server's locale, and there are
-- locales in which "aa" or "dd" is one letter. Eight digits are exact in a double, sixteen are not.
local function before(a, b)
  if a == b then return false end
  for i = 1, #a, 8 do
    local x, y = a:sub(i, i + 7), b:sub(i, i + 7)
    if x ~= y then return tonumber(x, 16) < tonumber(y, 16) end
  end
  return false
end

-- A place is due and offset, a claim is the cursor's due and offset and the watermark: 16 digits each.
local function covers(claim, place)
  return before(place:sub(17), claim:sub(33)) and not before(claim:sub(1, 32), place)
end

local function hex(text, width) return text and #text == width and not text:find('%X') end

-- The shard's meta; nil if there is none that this layout version can read.
local function shard()
  local m = redis.call('HMGET', KEYS[1], 'version', 'identity', 'watermark', 'claimed', 'delivered', 'tail_from', 'token', 'lease_end',
    'ledger', 'history')
  if m[1] ~= ARGV[1] or not m[2] then return nil end
  if not (m[3] and m[4] and m[5] and m[6] and #m[3] == 16 and #m[4] == 48 and hex(m[3] .. m[4] .. m[5] .. m[6], 128)) then return nil end
  if not (#m[5] == 48 and #m[6] == 16) then return nil end
  return { identity = m[2], watermark = m[3], claimed = m[4], delivered = m[5], tail_from = m[6], token = m[7],
    lease_end = tonumber(m[8] or '') or 0, ledger = m[9], history = m[10] or '' }
end

local function state(s)
  return { s.identity, s.watermark, s.claimed, s.delivered, s.ledger or '', s.history, redis.call('HGETALL', KEYS[2]) }
end

-- The server's time in milliseconds: far below 2^53, so a number holds it.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The keys that hold another type than theirs, as a reply; nil if there is none. What follows the fixed keys are slices. A fixed key whose
-- type is false is not looked at: it is not touched, or was read as what it is.
local function foreign(types)
  local reply = { 'foreign' }
  for i, key in ipairs(KEYS) do
    local wanted = types[i]
    if wanted == nil then wanted = (i - #types) % 2 == 1 and 'zset' or 'hash' end
    local found = wanted and redis.call('TYPE', key).ok
    if wanted and found ~= 'none' and found ~= wanted then reply[#reply + 1] = i end
  end
  return reply[2] and reply
end
