#!lua flags=no-writes
-- Reads all sessions that have not ended. The reply is described in `heartbeat.lua`.
-- KEYS   1 workers of version 0.1.0
--        2 sessions
-- ARGV   1 prefix of the channels of processes
-- Reply  renewed, now in ms, sessions
--        foreign, numbers of the KEYS with another type..
local wrong_types = foreign({})
if wrong_types then return wrong_types end

local now = clock()
return session_reply({ 'renewed', now }, sessions(now), ARGV[1])
