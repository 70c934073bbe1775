-- Functions for the ledger of a shard. `script.rs` puts this file behind the first line of every
-- script. The format of the field is in src/store/redis/key.rs, the rules are in
-- src/store/rules/ledger.rs. In Lua the ledger is a list: 1 accepted, 2 delivered, 3 cancelled, 4
-- dead-lettered, 5 retried, 6 removed, 7 uncertain (1 or 0).

-- Reads the ledger. If it belongs to other positions, a version without ledgers moved them: then it
-- starts anew with the messages that are stored now.
local function ledger(s)
  local l = { string.match(s.ledger or '', '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([01]) (%x+)$') }
  if l[8] == s.watermark .. s.delivered then
    for i = 1, 7 do l[i] = tonumber(l[i]) end
    return l
  end
  l = { 0, 0, 0, 0, 0, 0, 1 }
  local counts = redis.pcall('HGETALL', KEYS[2])
  for i = 1, #counts, 2 do
    if is_slice(counts[i]) or counts[i] == 'quarantine' then
      l[1] = l[1] + (tonumber(counts[i + 1]:match('^(%d+) ') or 0))
    end
  end
  return l
end

-- Makes an uncertain ledger certain again if possible. If more messages were removed than have an
-- outcome, the other outcomes were lost: these messages no longer count. In an empty shard, at most
-- the quarantined messages have an outcome and are still stored.
local function reconcile(l, s)
  if l[7] == 0 then return end
  local quarantine = redis.pcall('HGET', KEYS[2], 'quarantine') or ''
  -- Besides the quarantine, all fields of counts are slices.
  local fields = redis.pcall('HLEN', KEYS[2])
  local empty = fields == (quarantine == '' and 0 or 1) and not before(s.watermark, s.delivered:sub(33))
  local quarantined = type(quarantine) == 'string' and tonumber(string.match(quarantine, '^(%d+) ') or 0) or 0
  local removed, finished = l[6], l[2] + l[3] + l[4] + l[5]
  if finished < removed then
    removed = finished
  elseif empty then
    removed = math.max(removed, finished - quarantined)
  end
  l[1] = math.max(l[1] + removed - l[6], 0)
  l[6] = removed
  l[7] = empty and 0 or 1
end

-- The value of the field, for the positions that the shard has now.
local function ledger_text(l, s)
  return string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f ', unpack(l, 1, 7)) .. s.watermark .. s.delivered
end
