-- Functions for sessions. KEYS[1] is the workers key of version 0.1.0 and KEYS[2] the sessions key.

-- All sessions that have not ended. A session that ends after twice its length has expired too: the
-- clock was set back.
local function sessions(now)
  local found, all = {}, redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    local number, ends, length, entry = all[i + 1]:match('^(%d+) (%d+) (%d+) (.*)$')
    if number then
      local expires_in = tonumber(ends) - now
      if expires_in < 0 or expires_in > 2 * tonumber(length) then expires_in = 0 end
      found[#found + 1] = { id = all[i], number = number, length = length, expires_in = expires_in, entry = entry }
    end
  end
  return found
end

-- The reply that lists the sessions. A worker is connected if somebody listens to its channel.
local function session_reply(reply, found, channel_prefix)
  for _, s in ipairs(found) do
    local channel = channel_prefix .. s.id:match('^%x*')
    local listeners = redis.call('PUBSUB', 'NUMSUB', channel)[2]
    for _, part in ipairs({ s.id, s.number, s.length, s.expires_in, listeners, s.entry }) do reply[#reply + 1] = part end
  end
  return reply
end
