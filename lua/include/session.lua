-- Functions for sessions. KEYS[1] is the workers key of version 0.1.0 and KEYS[2] the sessions key.

-- All sessions that have not ended. A session that ends after twice its length has expired too: the
-- clock was set back.
local function sessions(now)
  local found, all = {}, redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    local number, ends, length, server, entry = all[i + 1]:match('^(%d+) (%d+) (%d+) (%x+) (.*)$')
    if number then
      local expires_in = tonumber(ends) - now
      if expires_in < 0 or expires_in > 2 * tonumber(length) then expires_in = 0 end
      found[#found + 1] = { id = all[i], number = number, length = length, expires_in = expires_in, server = server, entry = entry }
    end
  end
  return found
end

-- Returns true if the process of a session listens to its channel. The channel is named after the
-- worker and the first eight digits of the number, which all sessions of a process share.
local function listens(id, channel_prefix)
  return redis.call('PUBSUB', 'NUMSUB', channel_prefix .. id:sub(1, 41))[2] > 0
end

-- The id of this run of the server: another one follows after a restart or a failover. `nil` if the
-- server does not tell it.
local function run_id()
  return redis.call('INFO', 'server'):match('run_id:(%x+)')
end

-- The reply that lists the sessions. A process has gone if it listened at its last heartbeat, to this
-- run of the server, and does not listen now.
local function session_reply(reply, found, channel_prefix)
  local server = run_id()
  for _, s in ipairs(found) do
    local connected = (s.server ~= server or listens(s.id, channel_prefix)) and 1 or 0
    for _, part in ipairs({ s.id, s.number, s.length, s.expires_in, connected, s.entry }) do reply[#reply + 1] = part end
  end
  return reply
end
