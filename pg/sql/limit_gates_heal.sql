-- Makes gates' shards agree with the executing rows that hold their slots, and with the configuration.
-- After limit_gates_lock in its transaction, which says what it has locked: so this one's snapshot shows every admission to these
-- shards.
-- A key of which all shards are locked: nobody holds a slot, it is deleted; its limit is gone, it stays until nobody does.
-- Else each shard gets its part of the limit, and what is free in it such that the key's sum is right even where another
-- shard has more holders than its part; such a one keeps them as its capacity, and so do shards that are one too many.
-- While a key has more holders than its limit, each shard counts so many more as taken that whichever end first, nothing
-- becomes free too early; the next count puts that right.
-- A key of which only some are locked: these are recounted within the capacity they have, if all shards are as configured.
-- Returns slots found free, slots found taken, keys reshaped, keys deleted.
-- Index: gen_durable_lease for the executing rows, gen_durable_buckets_pkey, gen_durable_bucket_configs_pkey.
WITH locked AS MATERIALIZED (
    SELECT DISTINCT e.pair ->> 0 AS key, (e.pair ->> 1)::smallint AS shard
      FROM json_array_elements(current_setting('gendurable.locked_shards')::json) AS e(pair)
), keys AS MATERIALIZED (
    SELECT l.key FROM locked l GROUP BY l.key
), part AS (
    SELECT l.key, l.shard, true AS locked, NULL::float8 AS capacity, NULL::float8 AS available, 0 AS held, NULL::float8 AS share FROM locked l
    UNION ALL
    SELECT b.key, b.shard, false, b.capacity, b.available, 0, NULL
      FROM keys k
      JOIN public.gen_durable_buckets b ON b.kind = 'conc' AND b.key = k.key
    UNION ALL
    SELECT g.concurrency_key, g.concurrency_shard, false, NULL, NULL, 1, NULL
      FROM public.gen_durable g
     WHERE g.status = 'executing' AND g.concurrency_shard >= 0 AND g.concurrency_key IS NOT NULL
       AND (SELECT count(*) FROM locked) > 0
    UNION ALL
    SELECT k.key, n.shard::smallint, false, NULL, NULL, 0,
           floor(floor(c.capacity) / m.shards)
         + CASE WHEN n.shard < floor(c.capacity) - m.shards * floor(floor(c.capacity) / m.shards) THEN 1 ELSE 0 END
      FROM keys k
      JOIN public.gen_durable_bucket_configs c ON c.kind = 'conc' AND c.name = split_part(k.key, ':', 1)
     CROSS JOIN LATERAL (SELECT greatest(c.shards, 1)::int AS shards) m
     CROSS JOIN LATERAL generate_series(0, m.shards - 1) AS n(shard)
), shard AS (
    SELECT p.key, p.shard, bool_or(p.locked) AS locked, max(p.capacity) AS capacity, max(p.available) AS available,
           sum(p.held)::float8 AS held, max(p.share) AS share
      FROM part p GROUP BY p.key, p.shard
), judged AS (
    SELECT s.key, s.shard, s.locked, s.capacity, s.available, s.held, s.share,
           bool_or(s.locked) OVER k AS ours,
           bool_and(s.locked OR s.capacity IS NULL) OVER k AS whole,
           bool_and(s.capacity IS NOT NULL AND s.share IS NOT NULL AND s.capacity <= s.share) OVER k AS regular,
           bool_or(s.share IS NOT NULL) OVER k AS configured,
           sum(s.held) OVER k AS held_of_key,
           greatest(sum(s.share) OVER k - sum(s.held) OVER k, 0) AS free_of_key,
           greatest(sum(s.held) OVER k - sum(s.share) OVER k, 0) AS over_of_key,
           greatest(coalesce(s.share, 0) - s.held, 0) AS room,
           coalesce(sum(greatest(coalesce(s.share, 0) - s.held, 0))
                    OVER (PARTITION BY s.key ORDER BY s.shard ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
      FROM shard s
    WINDOW k AS (PARTITION BY s.key)
), target AS MATERIALIZED (
    SELECT j.key, j.shard, j.held, j.capacity AS old_capacity, j.capacity - j.available AS old_held, j.whole AND j.held_of_key = 0 AS swept,
           j.whole AND j.held_of_key > 0 AND j.share IS NULL AND j.held = 0 AS surplus,
           CASE WHEN j.whole THEN greatest(coalesce(j.share, 0) + least(j.over_of_key, j.held), j.held) ELSE greatest(j.capacity, j.held) END AS capacity,
           CASE WHEN j.whole THEN greatest(least(j.room, j.free_of_key - j.before), 0) ELSE greatest(j.capacity - j.held, 0) END AS available
      FROM judged j
     WHERE j.ours
       AND (j.capacity IS NOT NULL OR j.whole AND j.held_of_key > 0 AND j.share IS NOT NULL)
       AND (j.whole AND (j.held_of_key = 0 OR j.configured) OR j.locked AND j.configured AND j.regular)
), healed AS (
    UPDATE public.gen_durable_buckets b
       SET capacity = t.capacity, available = t.available, counted = pg_current_snapshot()
      FROM target t
     WHERE NOT t.swept AND NOT t.surplus AND t.old_capacity IS NOT NULL
       AND b.kind = 'conc' AND b.key = t.key AND b.shard = t.shard
       AND (b.capacity <> t.capacity OR b.available <> t.available
            OR t.held <> t.capacity - t.available) -- counted anew, though for other reasons as many are taken
    RETURNING b.key, t.old_held - (t.capacity - t.available) AS freed, t.old_capacity <> t.capacity AS reshaped
), made AS (
    INSERT INTO public.gen_durable_buckets (kind, key, shard, capacity, available, counted)
    SELECT 'conc', t.key, t.shard, t.capacity, t.available, pg_current_snapshot()
      FROM target t
     WHERE NOT t.swept AND t.old_capacity IS NULL
     ORDER BY t.key, t.shard
    ON CONFLICT (kind, key, shard) DO NOTHING
    RETURNING gen_durable_buckets.key
), gone AS (
    DELETE FROM public.gen_durable_buckets b
     USING target t
     WHERE (t.swept OR t.surplus)
       AND b.kind = 'conc' AND b.key = t.key AND b.shard = t.shard
    RETURNING b.key, t.swept
)
SELECT coalesce((SELECT sum(greatest(h.freed, 0)) FROM healed h), 0)::int,
       coalesce((SELECT sum(greatest(-h.freed, 0)) FROM healed h), 0)::int,
       (SELECT count(*) FROM (SELECT h.key FROM healed h WHERE h.reshaped UNION SELECT m.key FROM made m
                              UNION SELECT g.key FROM gone g WHERE NOT g.swept) r)::int,
       (SELECT count(DISTINCT g.key) FROM gone g WHERE g.swept)::int
