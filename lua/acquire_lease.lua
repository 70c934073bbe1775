#!lua flags=allow-oom
-- Takes a lease without a holder, or with the holder that the caller names because its session has
-- ended (I5). A repeat changes nothing. A holder of version 0.1.0 has no session: its lease ends by
-- the clock of the server. A lease that ends after twice its length has ended too: the clock was set
-- back.
-- KEYS   1 meta
--        2 counts
-- ARGV   1 layout version
--        2 token
--        3 identity of the source that the worker reads
--        4 token of a holder whose session has ended, or empty
-- Reply  granted, state
--        held, token of the holder
--        newer, a slice whose level this version does not know
--        other_cluster, identity in meta
--        unknown
local s = shard()
if not s then return { 'unknown' } end
if not may_share_cluster(s.identity, ARGV[3]) then return { 'other_cluster', s.identity } end
local is_held = s.token and s.token ~= ARGV[2] and s.token ~= ARGV[4]
local now, old = clock(), redis.call('HMGET', KEYS[1], 'lease_end', 'lease_length')
if is_held and not s.token:find('.', 1, true) then
  local left, length = (tonumber(old[1] or '') or 0) - now, tonumber(old[2] or '') or math.huge
  is_held = left > 0 and left <= 2 * length
end
if is_held then return { 'held', s.token } end
local found, newer = state(s)
if not found then return { 'newer', newer } end

redis.call('HDEL', KEYS[1], 'lease_end', 'lease_length')
redis.call('HSET', KEYS[1], 'token', ARGV[2])
return { 'granted', found }
