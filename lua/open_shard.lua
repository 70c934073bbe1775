#!lua
-- Birth: writes a shard's meta if there is none; else changes nothing. Identity, layout version, W and delivered come into being in this
-- one step, and nothing else gives life to a shard. Refused whole on a full Redis.
-- KEYS   1 meta  2 counts  3 tail  4 ids  5 cancelled  6 quarantine
-- ARGV   1 layout version  2 identity  3 watermark  4 delivered
-- Reply  born, state | found, state | version, what meta says | foreign, keys of another type..
local odd = foreign({ 'hash', 'hash', 'zset', 'hash', 'zset', 'hash' })
if odd then return odd end
local tag = 'found'
if redis.call('EXISTS', KEYS[1]) == 0 then
  tag = 'born'
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'identity', ARGV[2], 'watermark', ARGV[3], 'claimed', ARGV[4], 'delivered', ARGV[4],
    'tail_from', ARGV[3], 'ledger', '0 0 0 0 0 0 0 ' .. ARGV[3] .. ARGV[4])
end
local s = shard()
if not s then return { 'version', redis.call('HGET', KEYS[1], 'version') or '' } end
return { tag, state(s) }
