-- Forgets buckets that are full again, and those of limits that are gone.
-- KEYS[2] the buckets · ARGV[4..] their keys
-- Returns how many.
local swept = 0
for i = 4, #ARGV do
	local stored = redis.call('HGET', KEYS[2], ARGV[i])
	if stored then
		local rate, burst = limit('rate', ARGV[i])
		if not burst or refilled(stored, rate, burst) >= burst then swept = swept + redis.call('HDEL', KEYS[2], ARGV[i]) end
	end
end
return swept
