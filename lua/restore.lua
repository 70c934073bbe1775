#!lua
-- Puts the messages of a quarantined run back, as other runs: all or nothing. Refuses if one of them
-- would be inside the claimed or the delivered pair, because no timer would deliver it. Ends the
-- lease, so that the next owner of the shard loads the runs. A full Redis refuses the whole script.
-- A repeat finds the quarantined run gone.
-- KEYS   1 meta
--        2 counts
--        3 quarantine
--        then for each slice: index, pool
-- ARGV   1 layout version
--        2 name of the quarantined run
--        3 its messages
--        4 place of the first message
--        then for each run to add: number of its index in KEYS, slice, member, messages, score, bytes
-- Reply  done
--        gone
--        too_early
--        unknown
--        foreign, numbers of the KEYS with another type..
local s = shard()
if not s then return { 'unknown' } end
local wrong_types = foreign({ 'hash', 'hash', 'hash' })
if wrong_types then return wrong_types end
local bytes = redis.call('HGET', KEYS[3], ARGV[2])
if not bytes then return { 'gone' } end
if not (before(s.claimed:sub(1, 32), ARGV[4]) and before(s.delivered:sub(1, 32), ARGV[4])) then
  return { 'too_early' }
end

-- More outcomes than removed messages: some may be of this run, and these messages get a second
-- outcome. So the ledger becomes uncertain.
local l = ledger(s)
if l[2] + l[3] + l[4] + l[5] > l[6] then l[7] = 1 end
redis.call('HDEL', KEYS[3], ARGV[2])
if redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('HDEL', KEYS[2], 'quarantine')
else
  count('quarantine', -tonumber(ARGV[3]), -#bytes)
end
for at = 5, #ARGV, 6 do add(tonumber(ARGV[at]), unpack(ARGV, at + 1, at + 5)) end
redis.call('HSET', KEYS[1], 'ledger', ledger_text(l, s))
redis.call('HDEL', KEYS[1], 'token', 'lease_end', 'lease_length')
return { 'done' }
