#!lua flags=no-writes
-- Reads all sessions that have not ended. While workers of version 0.1.0 are alive, no session continues,
-- so it answers only their number. The reply is described in `heartbeat.lua`.
-- KEYS   1 workers of version 0.1.0
--        2 sessions
-- ARGV   1 prefix of the channels of processes
-- Reply  renewed, now in ms, sessions
--        older_workers, their number
--        foreign, numbers of the KEYS with another type..
local wrong_types = foreign({})
if wrong_types then return wrong_types end

local now = clock()
local older = #redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')
if older > 0 then return { 'older_workers', older } end

return session_reply({ 'renewed', now }, sessions(now), ARGV[1])
