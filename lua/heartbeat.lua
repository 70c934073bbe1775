#!lua flags=allow-oom
-- Begins a session, or extends it to `length` from now, and answers all sessions that have not
-- ended. The first heartbeat replaces sessions with the same name, if they have the same lock. Ends
-- a session that has lost an answered heartbeat: the store was rolled back. A heartbeat that a later one
-- has overtaken changes nothing. Refuses every worker while workers of version 0.1.0 are alive, and
-- a worker whose name belongs to a session with another lock. Also refuses a worker that shares no
-- cluster with the others, if both sides name some. The key expires after a day without heartbeats.
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
--        other_clusters, sessions
--        older_workers, their number
--        foreign, numbers of the KEYS with another type..
--        sessions: for each its id, number of its last heartbeat, length in ms, time until it
--        expires in ms, 1 or 0: its process is connected, entry
local wrong_types = foreign({})
if wrong_types then return wrong_types end

local now = clock()
local older = #redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')
if older > 0 then return { 'older_workers', older } end

local found, own = sessions(now), cjson.decode(ARGV[4])
local stored = redis.call('HGET', KEYS[2], ARGV[1])
local last = stored and tonumber(stored:match('^%d+')) or 0
local went_back = stored and last < tonumber(ARGV[6])
if tonumber(ARGV[2]) > 1 and not stored or went_back then
  redis.call('HDEL', KEYS[2], ARGV[1])
  return session_reply({ 'ended' }, sessions(now), ARGV[5])
end

if last >= tonumber(ARGV[2]) then return session_reply({ 'renewed', now }, found, ARGV[5]) end

local own_clusters, is_shared, is_foreign, replaced = {}, #own.clusters == 0, false, {}
for _, cluster in ipairs(own.clusters) do own_clusters[cluster] = true end
for _, s in ipairs(found) do
  local is_read, entry = pcall(cjson.decode, s.entry)
  if s.id == ARGV[1] or not is_read or type(entry) ~= 'table' then
    -- Skips its own session, and entries that cannot be read.
  elseif entry.name == own.name then
    if entry.lock_id ~= own.lock_id then return session_reply({ 'name_taken' }, found, ARGV[5]) end
    replaced[#replaced + 1] = s.id
  elseif type(entry.clusters) == 'table' then
    for _, cluster in ipairs(entry.clusters) do
      is_shared, is_foreign = is_shared or own_clusters[cluster], true
    end
  end
end
if is_foreign and not is_shared then return session_reply({ 'other_clusters' }, found, ARGV[5]) end

for _, id in ipairs(replaced) do redis.call('HDEL', KEYS[2], id) end
local ends = string.format('%.0f', now + tonumber(ARGV[3]))
local server = listens(ARGV[1], ARGV[5]) and run_id() or '0'
redis.call('HSET', KEYS[2], ARGV[1], table.concat({ ARGV[2], ends, ARGV[3], server, ARGV[4] }, ' '))
redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', now + 86400000))
return session_reply({ 'renewed', now }, sessions(now), ARGV[5])
