-- Stores limits, and shows all.
-- ARGV[4] 'set', or 'fill' for those only that are not there · ARGV[5..] fields and their values, in turn
-- Returns the era and the whole hash.
if #ARGV > 4 and era == '' then begin() end
local put = ARGV[4] == 'fill' and 'HSETNX' or 'HSET'
for i = 5, #ARGV, 2 do redis.call(put, KEYS[1], ARGV[i], ARGV[i + 1]) end
return {era, redis.call('HGETALL', KEYS[1])}
