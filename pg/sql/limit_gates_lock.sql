-- Takes the shards of a page of gates' keys, for limit_gates_heal, which follows in the same transaction and round trip: whoever
-- gives slots back waits for these locks, so that they must not be held for as long as a client takes to answer.
-- $1 text the key after which the page begins · $2 bigint how many keys
-- Returns how many keys the page has, the last one, how many are not as configured and have shards that somebody else holds just
-- now, and true. Which shards are locked is told to limit_gates_heal by a setting that ends with the transaction.
-- Locks: shards by key and number, with SKIP LOCKED. Index: gen_durable_buckets_pkey, gen_durable_bucket_configs_pkey.
WITH page AS MATERIALIZED (
    SELECT DISTINCT b.key FROM public.gen_durable_buckets b WHERE b.kind = 'conc' AND b.key > $1 ORDER BY b.key LIMIT $2
), locked AS MATERIALIZED (
    SELECT b.key, b.shard
      FROM page p
      JOIN public.gen_durable_buckets b ON b.kind = 'conc' AND b.key = p.key
     ORDER BY b.key, b.shard
       FOR UPDATE OF b SKIP LOCKED
)
SELECT (SELECT count(*) FROM page)::int, coalesce((SELECT max(p.key) FROM page p), ''),
       (SELECT count(*)
          FROM (SELECT u.key, sum(u.found) AS shards, sum(u.capacity) AS capacity
                  FROM (SELECT b.key, 1 AS found, 0 AS locked, b.capacity
                          FROM page p JOIN public.gen_durable_buckets b ON b.kind = 'conc' AND b.key = p.key
                         UNION ALL
                        SELECT l.key, 0, 1, 0 FROM locked l) AS u(key, found, locked, capacity)
                 GROUP BY u.key HAVING sum(u.locked) < sum(u.found)) AS s
          JOIN public.gen_durable_bucket_configs c ON c.kind = 'conc' AND c.name = split_part(s.key, ':', 1)
         WHERE s.shards <> greatest(c.shards, 1) OR s.capacity <> floor(c.capacity))::int,
       set_config('gendurable.locked_shards',
                  coalesce((SELECT json_agg(json_build_array(l.key, l.shard)) FROM locked l)::text, '[]'), true) IS NOT NULL
