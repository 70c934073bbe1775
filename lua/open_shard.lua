#!lua
-- Creates a shard if there is none and the caller asks for it: writes the meta hash with identity,
-- layout version, watermark, delivered, hold, possibly_delivered and pause in one step. If the shard exists,
-- it only extends possibly_delivered, and takes a newer pause. No other script but end_copy creates a shard.
-- A full Redis refuses the whole script.
-- KEYS   1 meta
--        2 counts
--        3 tail
--        4 ids
--        5 cancelled
--        6 quarantine
--        7 effects
-- ARGV   1 layout version
--        2 identity
--        3 watermark
--        4 delivered
--        5 hold: claims wait until the watermark is here
--        6 possibly_delivered: a pair; one with the watermark 0 covers nothing
--        7 1: create the shard if there is none
--        8 pause, or empty
-- Reply  created, state
--        existing, state
--        absent
--        version, layout version in meta: another one, or the current one with unreadable values
--        newer, a slice whose level this version does not know
--        foreign, numbers of the KEYS with another type..
local wrong_types = foreign({ 'hash', 'hash', 'zset', 'hash', 'zset', 'hash', 'hash' })
if wrong_types then return wrong_types end

local tag = 'existing'
if redis.call('EXISTS', KEYS[1]) == 0 then
  if ARGV[7] ~= '1' then return { 'absent' } end
  tag = 'created'
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'identity', ARGV[2], 'watermark', ARGV[3],
    'claimed', ARGV[4], 'delivered', ARGV[4], 'tail_from', ARGV[3], 'hold', ARGV[5], 'possibly_delivered', ARGV[6],
    'ledger', '0 0 0 0 0 0 0 ' .. ARGV[3] .. ARGV[4])
end
local s = shard()
if not s then return { 'version', redis.call('HGET', KEYS[1], 'version') or '' } end
local old, old_pause = s.possibly_delivered, s.pause
local cursor, watermark = old:sub(1, 32), old:sub(33)
if before(cursor, ARGV[6]:sub(1, 32)) then cursor = ARGV[6]:sub(1, 32) end
if before(watermark, ARGV[6]:sub(33)) then watermark = ARGV[6]:sub(33) end
s.possibly_delivered = cursor .. watermark
if is_newer_pause(ARGV[8], s.pause) then s.pause = ARGV[8] end
local found, newer = state(s)
if found and s.possibly_delivered ~= old then
  redis.call('HSET', KEYS[1], 'possibly_delivered', s.possibly_delivered)
end
if found and s.pause ~= old_pause then redis.call('HSET', KEYS[1], 'pause', s.pause) end
return found and { tag, found } or { 'newer', newer }
