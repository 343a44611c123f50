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
       (SELECT count(*) FROM (
            SELECT b.key
              FROM page p
              JOIN public.gen_durable_buckets b ON b.kind = 'conc' AND b.key = p.key
              JOIN public.gen_durable_bucket_configs c ON c.kind = 'conc' AND c.name = split_part(b.key, ':', 1)
             GROUP BY b.key, c.capacity, c.shards
            HAVING (count(*) <> greatest(c.shards, 1) OR sum(b.capacity) <> floor(c.capacity))
               AND bool_or((b.key, b.shard) NOT IN (SELECT l.key, l.shard FROM locked l))) AS m)::int,
       set_config('gendurable.locked_shards',
                  coalesce((SELECT json_agg(json_build_array(l.key, l.shard)) FROM locked l)::text, '[]'), true) IS NOT NULL
