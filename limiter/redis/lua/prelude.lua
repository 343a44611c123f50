-- What every script begins with.
-- KEYS[1] the limits, a hash: a field "kind:name" for each, and era, born, shut
-- ARGV[1] the era that the caller knows, or '' · ARGV[2] the name of a new one · ARGV[3] the lease of a slot, in µs
--
-- An era is the life of one set of counters. A caller who knows another era than the one here has lived through the loss of
-- all counters, and says so to everybody: no gate gives a slot until each holder from before has had the time of a lease to
-- be counted again (shut), and a bucket that nobody has used in this era is one that was empty when it began (born).
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

local function whole(n) return string.format('%.0f', n) end

local state = redis.call('HMGET', KEYS[1], 'era', 'born', 'shut')
local era, born, shut = state[1] or '', tonumber(state[2] or now), tonumber(state[3] or 0)

local function begin()
	era, born = ARGV[2], now
	redis.call('HSET', KEYS[1], 'era', era, 'born', whole(born))
end

local lost = ARGV[1] ~= '' and ARGV[1] ~= era
if lost then
	if era == '' then begin() end
	if shut == 0 then
		shut = born + tonumber(ARGV[3])
		redis.call('HSET', KEYS[1], 'shut', whole(shut))
	end
end

-- limit is what is configured for a key: tokens a second (0 of a gate) and size; nil if nothing is.
local function limit(kind, key)
	local set = redis.call('HGET', KEYS[1], kind .. ':' .. string.match(key, '^[^:]*'))
	if not set then return nil end
	local rate, size = string.match(set, '^(%S+) (%S+)')
	return tonumber(rate), tonumber(size)
end

-- refilled is how many tokens a bucket has now; stored is false of one that is at rest.
local function refilled(stored, rate, burst)
	local tokens, last = burst, now
	if stored then
		local t, l = string.match(stored, '^(%S+) (%S+)$')
		tokens, last = tonumber(t), tonumber(l)
	elseif shut > 0 then
		tokens, last = 0, born
	end
	return math.min(burst, tokens + math.max(now - last, 0) / 1000000 * rate), math.max(now, last)
end
