-- What the scripts share of a shard's history: one field of meta, so that it costs no call of its own. The name of the reading that appended last,
-- that of the one before it, the watermark that it began at, the number of rewrites. What each is for stands in src/store/history.rs.

-- The four; of a shard that has none yet, and of one that cannot be read.
local function history(s)
  local h = { string.match(s.history, '^(%x+%-%x+) (%x+%-%x+) (%x+) (%d+)$') }
  if not hex(h[3], 16) then return { '0-0', '0-0', string.rep('0', 16), '0' } end
  return h
end
