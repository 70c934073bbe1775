#!lua flags=allow-oom
-- Ends the copy of a shard: writes identity, positions and ledger with the layout version, in one step.
-- The tail of the shard starts at its watermark.
-- KEYS   1 meta
-- ARGV   1 layout version of copies
--        2 layout version
--        3 identity
--        4 watermark
--        5 claimed
--        6 delivered
--        7 hold: a watermark, or `-`
--        8 possibly_delivered
--        9 ledger
--        10 for how long the rate of the route has held the shard back in ms
-- Reply  ended
--        no_copy
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return { 'no_copy' } end

redis.call('HSET', KEYS[1], 'version', ARGV[2], 'identity', ARGV[3], 'watermark', ARGV[4], 'claimed', ARGV[5],
  'delivered', ARGV[6], 'tail_from', ARGV[4], 'hold', ARGV[7], 'possibly_delivered', ARGV[8], 'ledger', ARGV[9],
  'rate_wait', ARGV[10])
return { 'ended' }
