-- Removes holders whose lease has ended, and forgets the keys that nobody holds.
-- KEYS[2] the set of gates' keys that have been used · KEYS[3..] gates' holders · ARGV[4..] their keys
-- Returns how many holders were removed and how many keys forgotten.
local healed, swept = 0, 0
for i = 3, #KEYS do
	healed = healed + redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', whole(now))
	if redis.call('ZCARD', KEYS[i]) == 0 then swept = swept + redis.call('SREM', KEYS[2], ARGV[i + 1]) end
end
return {healed, swept}
