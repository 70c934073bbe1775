#!lua flags=allow-oom
-- Ends sessions that had no heartbeat since the caller saw them.
-- KEYS   1 workers of version 0.1.0
--        2 sessions
-- ARGV   for each session: id, number of the last heartbeat that the caller saw, or empty: any
-- Reply  ended
--        foreign, numbers of the KEYS with another type..
local wrong_types = foreign({})
if wrong_types then return wrong_types end

for i = 1, #ARGV, 2 do
  local stored = redis.call('HGET', KEYS[2], ARGV[i])
  if stored and (ARGV[i + 1] == '' or stored:match('^%d+') == ARGV[i + 1]) then
    redis.call('HDEL', KEYS[2], ARGV[i])
  end
end
return { 'ended' }
