-- Extends holds on slots. Those that are not there are put back only where the caller says so, or while gates are closed
-- after a loss: otherwise a hold that has just been given back would come to life again.
-- KEYS[2] the set of gates' keys that have been used · KEYS[3..] gates' holders
-- ARGV[4] the lease of these, in µs · ARGV[5] n, then the n gates' keys, and for each slot: the number of its gate, its
-- row's name, and '1' to put it back
-- Returns the era, and the numbers of the slots, from 1 on, that were not there and were not put back.
local ends, out = whole(now + tonumber(ARGV[4])), {era}
local n = tonumber(ARGV[5])
for i = 6 + n, #ARGV, 3 do
	local gate, row = tonumber(ARGV[i]), ARGV[i + 1]
	local key = KEYS[2 + gate]
	if redis.call('ZSCORE', key, row) then
		redis.call('ZADD', key, 'XX', 'GT', ends, row)
	elseif lost or shut > now or ARGV[i + 2] == '1' then
		redis.call('ZADD', key, ends, row)
		redis.call('SADD', KEYS[2], ARGV[5 + gate])
	else
		out[#out + 1] = (i - 6 - n) / 3 + 1
	end
end
return out
