-- What the scripts share of a shard's ledger: one field of meta, so that it costs no call of its own. Its numbers, in their order: accepted,
-- delivered, cancelled, dead-lettered, sent back, gone, and 1 while it is unsure; behind them the watermark and the delivered pair that
-- they belong to. What each means stands in src/store/ledger.rs, as do the rules.

-- The ledger. One that is not of these positions was not written by whoever moved them, a version without ledgers: it begins anew with
-- what is there.
local function ledger(s)
  local l = { string.match(s.ledger or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([01]) (%x+)$') }
  if l[8] == s.watermark .. s.delivered then
    for i = 1, 7 do l[i] = tonumber(l[i]) end
    return l
  end
  l = { 0, 0, 0, 0, 0, 0, 1 }
  for _, value in ipairs(redis.pcall('HVALS', KEYS[2])) do l[1] = l[1] + (tonumber(string.match(value, '^(%d+) ') or 0)) end
  return l
end

local function settled(l) return l[2] + l[3] + l[4] + l[5] end

-- While it is unsure: what left without having been settled here was settled before; and a shard without runs, which stands where it was
-- delivered to, has nothing that is settled and there but what was set aside. Then it is sure again.
local function right(l, s)
  if l[7] == 0 then return end
  local aside = redis.pcall('HGET', KEYS[2], 'quarantine') or ''
  local fields = redis.pcall('HLEN', KEYS[2])
  local empty = fields == (aside == '' and 0 or 1) and not before(s.watermark, s.delivered:sub(33))
  local quarantined = type(aside) == 'string' and tonumber(string.match(aside, '^(%d+) ') or 0) or 0
  local gone, done = l[6], settled(l)
  if done < gone then gone = done elseif empty then gone = math.max(gone, done - quarantined) end
  l[1], l[6], l[7] = math.max(l[1] + gone - l[6], 0), gone, empty and 0 or 1
end

-- As it is written to meta, of where the shard stands then.
local function written(l, s) return string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f ', unpack(l, 1, 7)) .. s.watermark .. s.delivered end
