-- Deletes keys of rate limits that are at rest (full again) or whose limit is gone, and gives changed ones their new shards.
-- $1 text the key after which the page begins · $2 bigint how many keys
-- A key's shards together or not at all: one that is missing would never come back by itself, a key without any is full.
-- A key whose shards are not as configured shares what tokens it has among those it should have.
-- Returns how many keys the page had, its last one, how many were deleted, how many reshaped, and how many were not as configured and
-- had shards that somebody else held just then.
-- Locks: shards by key and number, with SKIP LOCKED. Index: gen_durable_buckets_pkey, gen_durable_bucket_configs_pkey.
WITH page AS MATERIALIZED (
    SELECT DISTINCT b.key FROM public.gen_durable_buckets b WHERE b.kind = 'rate' AND b.key > $1 ORDER BY b.key LIMIT $2
), locked AS MATERIALIZED (
    SELECT b.key, b.shard, b.capacity, b.available, b.last_refill
      FROM page p
      JOIN public.gen_durable_buckets b ON b.kind = 'rate' AND b.key = p.key
     ORDER BY b.key, b.shard
       FOR UPDATE OF b SKIP LOCKED
), part AS (
    SELECT l.key, l.shard, true AS locked, false AS found, l.capacity, l.available, l.last_refill,
           NULL::float8 AS share, NULL::float8 AS total, NULL::float8 AS rate FROM locked l
    UNION ALL
    SELECT b.key, b.shard, false, true, NULL, NULL, NULL, NULL, NULL, NULL
      FROM page p
      JOIN public.gen_durable_buckets b ON b.kind = 'rate' AND b.key = p.key
    UNION ALL
    SELECT p.key, n.shard::smallint, false, false, NULL, NULL, NULL,
           floor(floor(c.capacity) / m.shards)
         + CASE WHEN n.shard < floor(c.capacity) - m.shards * floor(floor(c.capacity) / m.shards) THEN 1 ELSE 0 END
         + CASE WHEN n.shard = 0 THEN c.capacity - floor(c.capacity) ELSE 0 END, c.capacity, coalesce(c.rate, 0)
      FROM page p
      JOIN public.gen_durable_bucket_configs c ON c.kind = 'rate' AND c.name = split_part(p.key, ':', 1)
     CROSS JOIN LATERAL (SELECT greatest(c.shards, 1)::int AS shards) m
     CROSS JOIN LATERAL generate_series(0, m.shards - 1) AS n(shard)
), shard AS (
    SELECT p.key, p.shard, bool_or(p.locked) AS locked, bool_or(p.found OR p.locked) AS found, max(p.capacity) AS capacity,
           min(p.available) AS available, max(p.last_refill) AS last_refill, max(p.share) AS share,
           max(max(p.total)) OVER k AS total, max(max(p.rate)) OVER k AS rate, sum(max(p.capacity)) OVER k AS capacity_of_key
      FROM part p GROUP BY p.key, p.shard
    WINDOW k AS (PARTITION BY p.key)
), refilled AS (
    SELECT s.key, s.shard, s.locked, s.found, s.capacity, s.share, s.total, s.last_refill,
           least(s.capacity, s.available + greatest(extract(epoch FROM now() - s.last_refill)::float8, 0)
                                         * coalesce(s.rate * s.capacity / nullif(s.capacity_of_key, 0), 0)) AS tokens
      FROM shard s
), judged AS (
    SELECT r.key, r.shard, r.found, r.share,
           bool_and(r.locked OR NOT r.found) OVER k AS whole,
           bool_and(r.found AND r.share IS NOT NULL AND r.capacity = r.share) OVER k AS regular,
           bool_and(r.tokens >= r.capacity) OVER k AS full_up,
           bool_or(r.share IS NOT NULL) OVER k AS configured,
           greatest(max(r.last_refill) OVER k, now()) AS refilled_at,
           least(max(r.total) OVER k, sum(r.tokens) OVER k) AS tokens,
           coalesce(sum(r.share) OVER (PARTITION BY r.key ORDER BY r.shard ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
      FROM refilled r
    WINDOW k AS (PARTITION BY r.key)
), target AS MATERIALIZED (
    SELECT j.key, j.shard, j.found, j.share, j.refilled_at, NOT j.configured OR coalesce(j.full_up, false) AS swept,
           greatest(least(j.share, j.tokens - j.before), 0) AS tokens
      FROM judged j
     WHERE j.whole
       AND (NOT j.configured OR coalesce(j.full_up, false) OR NOT j.regular)
), reshaped AS (
    UPDATE public.gen_durable_buckets b
       SET capacity = t.share, available = t.tokens, last_refill = t.refilled_at
      FROM target t
     WHERE NOT t.swept AND t.found AND t.share IS NOT NULL
       AND b.kind = 'rate' AND b.key = t.key AND b.shard = t.shard
    RETURNING 1
), made AS (
    INSERT INTO public.gen_durable_buckets (kind, key, shard, capacity, available, last_refill)
    SELECT 'rate', t.key, t.shard, t.share, t.tokens, t.refilled_at
      FROM target t
     WHERE NOT t.swept AND NOT t.found
     ORDER BY t.key, t.shard
    ON CONFLICT (kind, key, shard) DO NOTHING
    RETURNING 1
), gone AS (
    DELETE FROM public.gen_durable_buckets b
     USING target t
     WHERE t.found AND (t.swept OR t.share IS NULL)
       AND b.kind = 'rate' AND b.key = t.key AND b.shard = t.shard
    RETURNING 1
)
SELECT (SELECT count(*) FROM page)::int, coalesce((SELECT max(p.key) FROM page p), ''),
       (SELECT count(DISTINCT t.key) FROM target t WHERE t.swept AND t.found)::int,
       (SELECT count(DISTINCT t.key) FROM target t WHERE NOT t.swept)::int,
       (SELECT count(*)
          FROM (SELECT u.key, sum(u.found) AS shards, sum(u.capacity) AS capacity
                  FROM (SELECT b.key, 1 AS found, 0 AS locked, b.capacity
                          FROM page p JOIN public.gen_durable_buckets b ON b.kind = 'rate' AND b.key = p.key
                         UNION ALL
                        SELECT l.key, 0, 1, 0 FROM locked l) AS u(key, found, locked, capacity)
                 GROUP BY u.key HAVING sum(u.locked) < sum(u.found)) AS s
          JOIN public.gen_durable_bucket_configs c ON c.kind = 'rate' AND c.name = split_part(s.key, ':', 1)
         WHERE s.shards <> greatest(c.shards, 1) OR abs(s.capacity - c.capacity) > 0.001)::int
