-- Functions for the lineage of a shard. `script.rs` puts this file behind the first line of every
-- script. The format of the field is in src/store/redis/key.rs, its use is in
-- src/store/rules/lineage.rs. In Lua the lineage is a list: 1 number of replacements, then for each
-- epoch, the latest one first: epoch, watermark where it started.

local EPOCHS_MAX = 5

-- Reads the lineage. A missing or unreadable field counts as the lineage of a new shard.
local function lineage(s)
  local l = {}
  for word in s.lineage:gmatch('%S+') do l[#l + 1] = word end
  if #l % 2 == 0 or not l[1]:find('^%d+$') then return { '0' } end
  for i = 2, #l, 2 do
    if not l[i]:find('^%x+%-%x+$') or not hex(l[i + 1], 16) then return { '0' } end
  end
  return l
end

-- Returns true if other epochs have followed this one.
local function has_followed(l, epoch)
  for i = 4, #l, 2 do
    if l[i] == epoch and l[2] ~= epoch then return true end
  end
  return false
end

-- The value of the field after an append of another epoch at this watermark.
local function with_epoch(l, epoch, from)
  return table.concat({ l[1], epoch, from, unpack(l, 2, math.min(#l, 2 * EPOCHS_MAX - 1)) }, ' ')
end
