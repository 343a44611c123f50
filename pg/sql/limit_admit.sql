-- Admits claimed rows to their gates and rate limits.
-- $1 text worker · $2 bigint[] ids, most urgent first · $3 int[] numbers of their claims · $4 text[] gate key or null
-- $5 text[] rate key or null · $6 float8[] weight
-- Debits only what is finally admitted, and stamps the drawn shard on gated rows; all of it or nothing. A gated row must be
-- the worker's, executing under this claim, with this key and a provisional (negative) shard; one that has a slot
-- already is admitted at no cost; one that somebody holds locked is passed over.
-- Returns a line for each row that was decided about: its number from 1 on; 0 admitted, 1 denied by the gate, 2 by the
-- rate, 3 had its slot; the shard; whether the limit is configured; whether shards were left out because others hold them; free slots
-- of the gate, or tokens taken before this row; its weight; and for the first row that a rate denies, its shards: their
-- numbers, tokens before this statement, parts of the burst, tokens a second. Rows without a line are not the worker's.
-- Locks: gated rows by id, then shards by kind, key and number, both with SKIP LOCKED. Keys without shards are full: they
-- are made here, debited already, gates before rates, in order. Two that make a gate's meet in ON CONFLICT; of two that
-- make a rate's one gets 23505; who computed with what is no longer true gets 23514. Then again.
-- Lines of rows and shards are sorted into one another instead of joined: neither hash nor merge joins are to be had,
-- and 500 rows may have 500 keys. What is locked is fetched row by row, in order, whatever the planner thinks. A locked scan may show a row twice: shards are grouped before anything is summed.
-- Index: gen_durable_pkey, gen_durable_bucket_configs_pkey, gen_durable_buckets_pkey.
WITH asked AS MATERIALIZED (
    SELECT u.ord::int AS ord, u.id, u.claim, u.gate, u.rate, greatest(u.weight, 0) AS weight
      FROM unnest($2::bigint[], $3::int[], $4::text[], $5::text[], $6::float8[]) WITH ORDINALITY
           AS u(id, claim, gate, rate, weight, ord)
), owned AS MATERIALIZED (
    SELECT a.ord, a.id, a.gate, a.rate, a.weight, o.shard
      FROM (SELECT * FROM asked q WHERE q.gate IS NOT NULL ORDER BY q.id) a
     CROSS JOIN LATERAL (
           SELECT g.concurrency_shard AS shard
             FROM public.gen_durable g
            WHERE g.id = a.id
              AND g.locked_by = $1
              AND g.claims = a.claim
              AND coalesce(g.status, 'failed') = 'executing'
              AND g.concurrency_key = a.gate
              AND g.concurrency_shard IS NOT NULL
              FOR NO KEY UPDATE OF g SKIP LOCKED) o
), line AS MATERIALIZED (
    SELECT o.ord, o.id, o.gate, o.rate, o.weight, max(o.shard) AS shard
      FROM owned o GROUP BY o.ord, o.id, o.gate, o.rate, o.weight
    UNION ALL
    SELECT a.ord, a.id, NULL, a.rate, a.weight, (-1)::smallint FROM asked a WHERE a.gate IS NULL
), keys AS MATERIALIZED (
    SELECT k.kind, k.key, t.shards, t.total, c.rate, e.existing, e.usable,
           floor(t.total / t.shards) AS base, floor(t.total) - t.shards * floor(floor(t.total) / t.shards) AS extra,
           t.total - floor(t.total) AS rest
      FROM (SELECT DISTINCT 'conc' AS kind, l.gate AS key FROM line l WHERE l.gate IS NOT NULL AND l.shard < 0
            UNION ALL
            SELECT DISTINCT 'rate', l.rate FROM line l WHERE l.rate IS NOT NULL AND l.shard < 0) k
      JOIN public.gen_durable_bucket_configs c ON c.kind = k.kind AND c.name = split_part(k.key, ':', 1)
     CROSS JOIN LATERAL (SELECT greatest(c.shards, 1)::int AS shards,
                                CASE k.kind WHEN 'conc' THEN floor(c.capacity) ELSE c.capacity END AS total) t
     CROSS JOIN LATERAL (SELECT count(*)::int AS existing, (count(*) FILTER (WHERE b.shard < t.shards))::int AS usable
                           FROM public.gen_durable_buckets b WHERE b.kind = k.kind AND b.key = k.key) e
), grabbed AS MATERIALIZED (
    SELECT b.kind, b.key, b.shard, b.capacity, b.available, b.last_refill, k.rate, k.total,
           k.base + CASE WHEN b.shard < k.extra THEN 1 ELSE 0 END + CASE WHEN b.shard = 0 THEN k.rest ELSE 0 END AS share
      FROM (SELECT * FROM keys q WHERE q.usable > 0 ORDER BY q.kind, q.key) k
     CROSS JOIN LATERAL (
           SELECT x.kind, x.key, x.shard, x.capacity, x.available, x.last_refill
             FROM public.gen_durable_buckets x
            WHERE x.kind = k.kind AND x.key = k.key AND x.shard < k.shards
            ORDER BY x.shard
              FOR UPDATE OF x SKIP LOCKED) b
), slot AS MATERIALIZED (
    SELECT x.kind, x.key, x.shard, x.share, coalesce(x.share * x.rate / nullif(x.total, 0), 0) AS fill, false AS cold,
           min(CASE x.kind
               WHEN 'conc' THEN greatest(least(x.share, x.capacity) - (x.capacity - x.available), 0)
               ELSE least(x.share, x.available + greatest(extract(epoch FROM now() - x.last_refill)::float8, 0)
                                               * coalesce(x.share * x.rate / nullif(x.total, 0), 0))
               END) AS free
      FROM grabbed x
     GROUP BY x.kind, x.key, x.shard, x.share, x.rate, x.total
    UNION ALL
    SELECT k.kind, k.key, n.shard::smallint, s.share, coalesce(s.share * k.rate / nullif(k.total, 0), 0), true, s.share
      FROM keys k
     CROSS JOIN LATERAL generate_series(0, k.shards - 1) AS n(shard)
     CROSS JOIN LATERAL (SELECT k.base + CASE WHEN n.shard < k.extra THEN 1 ELSE 0 END
                              + CASE WHEN n.shard = 0 THEN k.rest ELSE 0 END AS share) s
     WHERE k.existing = 0
), gated AS MATERIALIZED ( -- a row's slot is in the last shard that begins before its place
    SELECT p.ord, p.id, p.key AS gate, p.rate, p.weight, p.place,
           max(p.shard) OVER (PARTITION BY p.key ORDER BY p.place, p.ord NULLS FIRST ROWS UNBOUNDED PRECEDING) AS shard,
           coalesce(sum(p.free) OVER (PARTITION BY p.key), 0) AS free,
           max(p.usable) OVER (PARTITION BY p.key) AS usable,
           count(p.free) OVER (PARTITION BY p.key) AS grabbed
      FROM (SELECT l.ord, l.id, l.gate AS key, l.rate, l.weight, NULL::smallint AS shard, NULL::float8 AS free, NULL::int AS usable,
                   row_number() OVER (PARTITION BY l.gate ORDER BY l.ord)::float8 AS place
              FROM line l WHERE l.gate IS NOT NULL AND l.shard < 0
            UNION ALL
            SELECT NULL, NULL, s.key, NULL, NULL, CASE WHEN s.free > 0 THEN s.shard END, s.free, NULL,
                   0.5 + coalesce(sum(s.free) OVER (PARTITION BY s.key ORDER BY s.shard ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)
              FROM slot s WHERE s.kind = 'conc'
            UNION ALL
            SELECT NULL, NULL, k.key, NULL, NULL, NULL, NULL, k.usable, 0 FROM keys k WHERE k.kind = 'conc') p
), priced AS MATERIALIZED (
    SELECT w.ord, w.id, w.gate, w.shard, w.rate, w.weight, w.tokens, w.usable, w.grabbed, w.numbers, w.frees, w.shares, w.fills,
           sum(w.weight) OVER (PARTITION BY w.rate ORDER BY w.ord ROWS UNBOUNDED PRECEDING) AS used
      FROM (SELECT p.ord, p.id, p.gate, p.shard, p.rate,
                   least(p.weight, max(p.total) OVER (PARTITION BY p.rate)) AS weight,
                   coalesce(sum(p.free) OVER (PARTITION BY p.rate), 0) AS tokens,
                   max(p.usable) OVER (PARTITION BY p.rate) AS usable,
                   count(p.free) OVER (PARTITION BY p.rate) AS grabbed,
                   array_agg(p.number) FILTER (WHERE p.number IS NOT NULL) OVER byshard AS numbers,
                   array_agg(p.free) FILTER (WHERE p.number IS NOT NULL) OVER byshard AS frees,
                   array_agg(p.share) FILTER (WHERE p.number IS NOT NULL) OVER byshard AS shares,
                   array_agg(p.fill) FILTER (WHERE p.number IS NOT NULL) OVER byshard AS fills
              FROM (SELECT g.ord, g.id, g.gate, g.shard, g.rate, g.weight, NULL::smallint AS number, NULL::float8 AS free,
                           NULL::float8 AS share, NULL::float8 AS fill, NULL::float8 AS total, NULL::int AS usable
                      FROM gated g WHERE g.ord IS NOT NULL AND g.rate IS NOT NULL AND g.place <= g.free
                    UNION ALL
                    SELECT l.ord, l.id, NULL, NULL, l.rate, l.weight, NULL, NULL, NULL, NULL, NULL, NULL
                      FROM line l WHERE l.gate IS NULL AND l.rate IS NOT NULL
                    UNION ALL
                    SELECT NULL, NULL, NULL, NULL, s.key, NULL, s.shard, s.free, s.share, s.fill, NULL, NULL
                      FROM slot s WHERE s.kind = 'rate'
                    UNION ALL
                    SELECT NULL, NULL, NULL, NULL, k.key, NULL, NULL, NULL, NULL, NULL, k.total, k.usable
                      FROM keys k WHERE k.kind = 'rate') p
            WINDOW byshard AS (PARTITION BY p.rate ORDER BY p.number ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)) w
     WHERE w.ord IS NOT NULL
), final AS MATERIALIZED (
    SELECT g.ord, g.id, g.gate, g.shard, NULL AS rate, 0::float8 AS weight
      FROM gated g WHERE g.ord IS NOT NULL AND g.rate IS NULL AND g.place <= g.free
    UNION ALL
    SELECT p.ord, p.id, p.gate, p.shard, p.rate, p.weight
      FROM priced p WHERE p.usable IS NOT NULL AND p.used <= p.tokens
), stamped AS (
    UPDATE public.gen_durable g
       SET concurrency_shard = f.shard
      FROM final f
     WHERE f.gate IS NOT NULL
       AND g.id = f.id
       AND g.locked_by = $1
       AND coalesce(g.status, 'failed') = 'executing'
    RETURNING 1
), drawn AS MATERIALIZED ( -- what each shard of a gate gives
    SELECT d.key, d.shard, max(d.share) AS share, bool_or(d.cold) AS cold, sum(d.taken) AS taken,
           sum(sum(d.taken)) OVER (PARTITION BY d.key) AS taken_of_key
      FROM (SELECT s.key, s.shard, s.share, s.cold, 0 AS taken FROM slot s WHERE s.kind = 'conc'
            UNION ALL
            SELECT f.gate, f.shard, NULL, NULL, 1 FROM final f WHERE f.gate IS NOT NULL) d
     GROUP BY d.key, d.shard
), spent AS MATERIALIZED ( -- what each shard of a rate gives, the first ones first
    SELECT d.key, d.shard, d.share, d.fill, d.cold, d.spent, greatest(least(d.free, d.spent - d.before), 0) AS taken
      FROM (SELECT u.key, u.shard, u.share, u.fill, u.cold, u.free, sum(u.weight) OVER (PARTITION BY u.key) AS spent,
                   coalesce(sum(u.free) OVER (PARTITION BY u.key ORDER BY u.shard NULLS LAST
                                              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
              FROM (SELECT s.key, s.shard, s.share, s.fill, s.cold, s.free, 0::float8 AS weight FROM slot s WHERE s.kind = 'rate'
                    UNION ALL
                    SELECT f.rate, NULL, NULL, NULL, NULL, NULL, f.weight FROM final f WHERE f.rate IS NOT NULL) u) d
     WHERE d.shard IS NOT NULL
), debited_gates AS (
    UPDATE public.gen_durable_buckets b
       SET capacity = least(d.share, b.capacity),
           available = least(d.share, b.capacity) - (b.capacity - b.available) - d.taken
      FROM drawn d
     WHERE d.taken > 0 AND NOT d.cold
       AND b.kind = 'conc' AND b.key = d.key AND b.shard = d.shard
    RETURNING 1
), debited_rates AS (
    UPDATE public.gen_durable_buckets b
       SET capacity = d.share,
           available = least(d.share, b.available + greatest(extract(epoch FROM now() - b.last_refill)::float8, 0)
                                                  * d.fill) - d.taken,
           last_refill = greatest(b.last_refill, now())
      FROM spent d
     WHERE d.taken > 0 AND NOT d.cold
       AND b.kind = 'rate' AND b.key = d.key AND b.shard = d.shard
    RETURNING 1
), minted_gates AS (
    INSERT INTO public.gen_durable_buckets AS b (kind, key, shard, capacity, available, counted)
    SELECT 'conc', d.key, d.shard, d.share, d.share - d.taken, pg_current_snapshot()
      FROM drawn d
     WHERE d.cold AND d.taken_of_key > 0
     ORDER BY d.key, d.shard
    ON CONFLICT (kind, key, shard) DO UPDATE
       SET capacity = least(EXCLUDED.capacity, b.capacity),
           available = least(EXCLUDED.capacity, b.capacity) - (b.capacity - b.available) - (EXCLUDED.capacity - EXCLUDED.available)
     WHERE EXCLUDED.available < EXCLUDED.capacity
    RETURNING 1
), minted_rates AS (
    INSERT INTO public.gen_durable_buckets (kind, key, shard, capacity, available, last_refill)
    SELECT 'rate', d.key, d.shard, d.share, d.share - d.taken, now()
      FROM spent d
     WHERE d.cold AND d.spent > 0 AND (SELECT count(*) FROM minted_gates) >= 0
     ORDER BY d.key, d.shard
    RETURNING 1
)
SELECT l.ord, 3::int AS place, l.shard, true AS known, false AS missed, 0::float8 AS before, 0::float8 AS weight,
       NULL::smallint[] AS numbers, NULL::float8[] AS frees, NULL::float8[] AS shares, NULL::float8[] AS fills
  FROM line l WHERE l.shard >= 0
UNION ALL
SELECT f.ord, 0, f.shard, true, false, 0, 0, NULL, NULL, NULL, NULL FROM final f
UNION ALL
SELECT g.ord, 1, NULL, g.usable IS NOT NULL, g.usable > g.grabbed, g.free, 0, NULL, NULL, NULL, NULL
  FROM gated g WHERE g.ord IS NOT NULL AND g.place > g.free
UNION ALL
SELECT p.ord, 2, NULL, p.usable IS NOT NULL, p.usable > p.grabbed, p.used - p.weight, p.weight,
       CASE WHEN p.used - p.weight <= p.tokens THEN p.numbers END, CASE WHEN p.used - p.weight <= p.tokens THEN p.frees END,
       CASE WHEN p.used - p.weight <= p.tokens THEN p.shares END, CASE WHEN p.used - p.weight <= p.tokens THEN p.fills END
  FROM priced p WHERE p.usable IS NULL OR p.used > p.tokens
