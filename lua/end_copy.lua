#!lua flags=allow-oom
-- Ends the copy of a shard: writes identity, positions and ledger with the layout version, in one step.
-- The tail of the shard starts at its watermark.
-- KEYS   1 meta
-- ARGV   1 layout version of copies
--        2 number of the copy
--        3 layout version
--        4 identity
--        5 watermark
--        6 claimed
--        7 delivered
--        8 hold: a watermark, or `-`
--        9 possibly_delivered
--        10 ledger
--        11 pause, or empty
-- Reply  ended
--        no_copy
local mark = redis.call('HMGET', KEYS[1], 'version', 'copy')
if mark[1] ~= ARGV[1] or mark[2] ~= ARGV[2] then return { 'no_copy' } end

redis.call('HSET', KEYS[1], 'version', ARGV[3], 'identity', ARGV[4], 'watermark', ARGV[5], 'claimed', ARGV[6],
  'delivered', ARGV[7], 'tail_from', ARGV[5], 'hold', ARGV[8], 'possibly_delivered', ARGV[9], 'ledger', ARGV[10],
  'pause', ARGV[11])
redis.call('HDEL', KEYS[1], 'copy')
return { 'ended' }
