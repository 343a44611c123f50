-- Admits rows to their gates and rates, one after the other; each gets both or pays for neither.
-- KEYS[2] the buckets, a hash: key → "tokens time" · KEYS[3] the set of gates' keys that have been used
-- KEYS[4..] for each gate's key asked for its holders, a sorted set by the end of their leases
-- ARGV[4] n, ARGV[5] m, then the n gates' keys, the m rates' keys, and for each row: its name, the number of its gate and
-- of its rate among these (0 = none), its weight
-- Returns the era; and, unless the caller has to put back the limits first, three numbers a row: the verdict, who denied (1
-- gate, 2 rate), and the µs until it makes sense to ask again, negative when that is not known.
if lost then return {era} end
local ADMITTED, SATURATED, UNCONFIGURED = 0, 1, 2
local BY_GATE, BY_RATE = 1, 2
local YEAR = 365 * 86400 * 1000000
local lease = now + tonumber(ARGV[3])

local gates, rates, at = {}, {}, 6
for i = 1, tonumber(ARGV[4]) do
	local g = {key = KEYS[3 + i], name = ARGV[at], taken = false}
	local _
	_, g.limit = limit('conc', g.name)
	redis.call('ZREMRANGEBYSCORE', g.key, '-inf', whole(now))
	g.held = redis.call('ZCARD', g.key)
	gates[i], at = g, at + 1
end
for i = 1, tonumber(ARGV[5]) do
	local r = {key = ARGV[at], spent = false}
	r.rate, r.burst = limit('rate', r.key)
	if r.burst then r.tokens, r.at = refilled(redis.call('HGET', KEYS[2], r.key), r.rate, r.burst) end
	rates[i], at = r, at + 1
end

-- deny says whether a gate or a rate keeps a row from running; nothing when not.
local function deny(g, r, weight)
	if g then
		if not g.limit then return UNCONFIGURED, BY_GATE, -1 end
		if shut > now then return SATURATED, BY_GATE, shut - now end
		if g.held >= g.limit then return SATURATED, BY_GATE, -1 end
	end
	if r then
		if not r.burst then return UNCONFIGURED, BY_RATE, -1 end
		-- Behind a row that waits for tokens nobody gets any.
		if not r.wait and weight > r.tokens then
			r.wait = math.min(math.ceil((weight - r.tokens) / r.rate * 1000000) + 1, YEAR)
		end
		if r.wait then return SATURATED, BY_RATE, r.wait end
	end
end

local out = {era}
local function answer(verdict, by, wait)
	out[#out + 1] = verdict
	out[#out + 1] = by
	out[#out + 1] = wait
end

for i = at, #ARGV, 4 do
	local row, g, r = ARGV[i], gates[tonumber(ARGV[i + 1])], rates[tonumber(ARGV[i + 2])]
	if g and redis.call('ZSCORE', g.key, row) then
		answer(ADMITTED, 0, 0)
	else
		local weight = math.max(tonumber(ARGV[i + 3]), 0)
		if r and r.burst then weight = math.min(weight, r.burst) end
		local verdict, by, wait = deny(g, r, weight)
		if verdict then
			answer(verdict, by, wait)
		else
			if g then
				redis.call('ZADD', g.key, whole(lease), row)
				g.held, g.taken = g.held + 1, true
			end
			if r and weight > 0 then r.tokens, r.spent = r.tokens - weight, true end
			answer(ADMITTED, 0, 0)
		end
	end
end

for _, g in ipairs(gates) do
	if g.taken then redis.call('SADD', KEYS[3], g.name) end
end
for _, r in ipairs(rates) do
	if r.spent then redis.call('HSET', KEYS[2], r.key, string.format('%.17g ', r.tokens) .. whole(r.at)) end
end
return out
