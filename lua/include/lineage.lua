-- Functions for the lineage of a shard. `script.rs` puts this file behind the first line of every
-- script. The format of the field is in src/store/redis/key.rs, its use is in
-- src/store/rules/lineage.rs. In Lua the lineage is a list: 1 epoch of the last append, 2 epoch
-- before it, 3 watermark where the epoch started, 4 number of replacements.

-- Reads the lineage. A missing or unreadable field counts as the lineage of a new shard.
local function lineage(s)
  local l = { string.match(s.lineage, '^(%x+%-%x+) (%x+%-%x+) (%x+) (%d+)$') }
  if not hex(l[3], 16) then return { '0-0', '0-0', string.rep('0', 16), '0' } end
  return l
end
