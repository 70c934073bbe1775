#!lua flags=allow-oom
-- Begins a session, or extends it to `length` from now, and answers all sessions that have not
-- ended. The first heartbeat replaces sessions with the same name, if they have the same lock or
-- have expired. Ends a session that has lost an answered heartbeat: the store went back. Refuses a
-- worker that shares no cluster with the other live workers, if both sides name some, and every
-- worker while workers of version 0.1.0 are alive. The key expires after a day without heartbeats.
-- KEYS   1 workers of version 0.1.0
--        2 sessions
-- ARGV   1 session
--        2 number of this heartbeat
--        3 length in ms
--        4 entry
--        5 prefix of the channels of processes
--        6 number of the last heartbeat that was answered, or 0
-- Reply  renewed, now in ms, sessions
--        ended, sessions
--        name_taken, sessions
--        other_clusters, ids of the clusters of the other workers..
--        older_workers, their number
--        foreign, numbers of the KEYS with another type..
--        sessions: for each its id, number of its last heartbeat, length in ms, time until it
--        expires in ms, 1 or 0: its process is connected, entry
local wrong_types = foreign({})
if wrong_types then return wrong_types end

local now, older = clock(), 0
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')) do
  if not member:find(' ', 1, true) then older = older + 1 end
end
if older > 0 then return { 'older_workers', older } end

local found, own = sessions(now), cjson.decode(ARGV[4])
local stored = redis.call('HGET', KEYS[2], ARGV[1])
local went_back = stored and tonumber(stored:match('^%d+')) < tonumber(ARGV[6])
if tonumber(ARGV[2]) > 1 and not stored or went_back then
  redis.call('HDEL', KEYS[2], ARGV[1])
  return session_reply({ 'ended' }, sessions(now), ARGV[5])
end

local own_clusters, is_shared, clusters, replaced = {}, #own.clusters == 0, { 'other_clusters' }, {}
for _, cluster in ipairs(own.clusters) do own_clusters[cluster] = true end
for _, s in ipairs(found) do
  local entry = s.id ~= ARGV[1] and cjson.decode(s.entry)
  if entry and entry.name == own.name then
    if s.expires_in > 0 and entry.lock ~= own.lock then return session_reply({ 'name_taken' }, found, ARGV[5]) end
    replaced[#replaced + 1] = s.id
  elseif entry and s.expires_in > 0 then
    for _, cluster in ipairs(entry.clusters) do
      is_shared = is_shared or own_clusters[cluster]
      clusters[#clusters + 1] = cluster
    end
  end
end
if not is_shared and clusters[2] then return clusters end

for _, id in ipairs(replaced) do redis.call('HDEL', KEYS[2], id) end
local ends = string.format('%.0f', now + tonumber(ARGV[3]))
local heard = listens(ARGV[1], ARGV[5]) and 1 or 0
redis.call('HSET', KEYS[2], ARGV[1], table.concat({ ARGV[2], ends, ARGV[3], heard, ARGV[4] }, ' '))
redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', now + 86400000))
return session_reply({ 'renewed', now }, sessions(now), ARGV[5])
