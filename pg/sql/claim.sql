-- Claims runnable rows of one queue.
-- $1 text queue · $2 text worker · $3 bigint lease in µs · $4 bigint limit
-- $5 text[] machines, $6 int[] versions, $7 text[] steps that this process cannot run; all null = none
-- $8 smallint[] priorities, ascending, $9 timestamptz[] since when: of these priorities only rows eligible since then; null = all
-- $17 timestamptz since when in the priorities that $8 does not name; null = not at all. Means nothing without $8
-- What limits leave out; jsonb objects whose fields are names or keys, null = none:
-- $10 the names of the gates in force · $11 keys of gates that are left out
-- $12 names of gates of which rows pass only as far as the counters show free slots
-- $13 keys of rates, $14 names of rates that are left out · $15 names of rates of which rows pass only if their tokens are there
-- $16 keys of rates with how many rows to take at most
-- Takes one priority after the other, each found by one probe behind the last, and scans gen_durable_pick from the first row
-- that is eligible now to the last: what is scheduled for later is never walked, whatever its priority. It stops after
-- the limit; rows that somebody holds are skipped, so that a claim never waits.
-- With $8 the priorities between the named ones are looked for by a probe a gap, which reads what is older than $17 in the index
-- alone: dead rows that cannot be cleaned away are not fetched. Those that it finds take their place among the named ones.
-- A row whose concurrency key is taken is filtered by one probe of the very index that forbids the
-- second one, and a batch takes one row a key; a race that slips through is a unique violation, and the caller claims
-- again. The scalar subqueries are deliberate: the planner can neither hash them nor turn them into joins.
-- A key of a gate is not subject to that: its row gets the shard -1, which keeps it out of the index and is not a slot; the
-- limiter admits it after the claim, or it is given back. A fully taken gate is told from the counters that the limiter
-- keeps, without a lock: a stale reading costs a claim in vain or a later one, never a slot.
-- A caller that does not know of a new gate yet must not run its keys one at a time beside others that do: such a row is left.
-- A row whose cancel was requested is not to be run but to be ended, so neither its key nor a limit keeps it: it counts here as a
-- row without either, of a step that anybody knows, and gets the shard -1, which keeps it out of the index where another of its key may be. It is found as
-- others are, by the scan that walks over the denied ones.
-- Rows without a key and without a rate limit pay for all this with two comparisons to null. A field of a jsonb object is
-- found by binary search, which an element of an array parameter is not.
-- A row of the original engine that enters its correlation scope only now is left out while its key is occupied, and a
-- batch takes one of those that enter with one key.
-- The rows are then updated by primary key, from an array: the plan does not depend on any estimate.
-- Of a paused queue (see queue_pause) not a row is read: whether it is one is asked once, before the scan begins.
-- Rows come in no particular order; the last column is how many rows were looked at for them, at most the limit.
WITH RECURSIVE lane(priority) AS (
    SELECT (SELECT g.priority FROM public.gen_durable g WHERE g.queue = $1 AND g.status = 'runnable' ORDER BY g.priority LIMIT 1)
     WHERE $8::smallint[] IS NULL
    UNION ALL
    SELECT (SELECT g.priority FROM public.gen_durable g
             WHERE g.queue = $1 AND g.status = 'runnable' AND g.priority > l.priority ORDER BY g.priority LIMIT 1)
      FROM lane l
     WHERE l.priority IS NOT NULL
), fresh(priority, high) AS (
    SELECT (SELECT g.priority FROM public.gen_durable g
             WHERE g.queue = $1 AND g.status = 'runnable' AND g.priority > gap.low AND g.priority < gap.high
               AND g.eligible_at >= $17::timestamptz AND g.eligible_at <= now() ORDER BY g.priority LIMIT 1), gap.high
      FROM unnest(-32769 || $8::int[], $8::int[] || 32768) AS gap(low, high)
     WHERE $8::int[] IS NOT NULL AND gap.high > gap.low + 1
    UNION ALL
    SELECT (SELECT g.priority FROM public.gen_durable g
             WHERE g.queue = $1 AND g.status = 'runnable' AND g.priority > f.priority AND g.priority < f.high
               AND g.eligible_at >= $17::timestamptz AND g.eligible_at <= now() ORDER BY g.priority LIMIT 1), f.high
      FROM fresh f
     WHERE f.priority IS NOT NULL
), scan AS (
    SELECT l.priority, '-infinity'::timestamptz AS since FROM lane l WHERE l.priority IS NOT NULL
    UNION ALL
    (SELECT u.priority, u.since FROM unnest($8::smallint[], $9::timestamptz[]) AS u(priority, since)
     UNION ALL
     SELECT f.priority, $17::timestamptz FROM fresh f WHERE f.priority IS NOT NULL
     ORDER BY 1)
), candidate AS MATERIALIZED (
    SELECT c.id, c.priority, c.eligible_at, c.concurrency_key, c.gated, c.rate_limit, c.free, c.entering
      FROM scan s
     CROSS JOIN LATERAL (
           SELECT g.id, g.priority, g.eligible_at,
                  CASE WHEN g.cancel_requested IS NULL THEN g.concurrency_key END AS concurrency_key,
                  CASE WHEN g.cancel_requested IS NULL THEN g.rate_limit END AS rate_limit,
                  g.concurrency_key IS NOT NULL AND g.cancel_requested IS NULL AND ($10::jsonb ? g.concurrency_name) IS TRUE AS gated,
                  CASE WHEN $12::jsonb ? g.concurrency_name
                       THEN (SELECT sum(b.available) FROM public.gen_durable_buckets b WHERE b.kind = 'conc' AND b.key = g.concurrency_key)
                  END AS free,
                  CASE WHEN g.correlation_guard IS NULL AND 'executing' = ANY (g.correlation_scope) THEN g.correlation_key END AS entering
             FROM public.gen_durable g
            WHERE g.queue = $1
              AND g.status = 'runnable'
              AND g.priority = s.priority
              AND g.eligible_at >= s.since
              AND g.eligible_at <= now()
              AND CASE WHEN g.concurrency_key IS NULL OR g.cancel_requested IS NOT NULL THEN true
                       WHEN $10::jsonb ? g.concurrency_name THEN
                            ($11::jsonb ? g.concurrency_key) IS NOT TRUE
                            AND CASE WHEN $12::jsonb ? g.concurrency_name
                                     THEN ((SELECT sum(b.available) FROM public.gen_durable_buckets b
                                             WHERE b.kind = 'conc' AND b.key = g.concurrency_key) >= 1) IS NOT FALSE
                                     ELSE true END
                       ELSE (SELECT 1 FROM public.gen_durable x
                              WHERE x.concurrency_key = g.concurrency_key AND x.concurrency_key IS NOT NULL
                                AND x.status = 'executing' AND x.concurrency_shard IS NULL LIMIT 1) IS NULL
                            AND (SELECT 1 FROM public.gen_durable_bucket_configs n
                                  WHERE n.kind = 'conc' AND n.name = g.concurrency_name LIMIT 1) IS NULL END
              AND CASE WHEN g.rate_limit IS NULL OR g.cancel_requested IS NOT NULL THEN true
                       WHEN $13::jsonb ? g.rate_limit THEN false
                       WHEN $14::jsonb ? split_part(g.rate_limit, ':', 1) THEN false
                       WHEN $15::jsonb ? split_part(g.rate_limit, ':', 1) THEN
                            (SELECT sum(least(b.capacity, b.available + greatest(extract(epoch FROM now() - b.last_refill)::float8, 0)
                                                                      * b.capacity * coalesce(c.rate / nullif(c.capacity, 0), 0)))
                                    >= least(g.weight, sum(b.capacity))
                               FROM public.gen_durable_bucket_configs c
                               JOIN public.gen_durable_buckets b ON b.kind = 'rate' AND b.key = g.rate_limit
                              WHERE c.kind = 'rate' AND c.name = split_part(g.rate_limit, ':', 1)) IS NOT FALSE
                       ELSE true END
              AND CASE WHEN $5::text[] IS NULL OR g.cancel_requested IS NOT NULL THEN true
                       ELSE (SELECT 1 FROM unnest($5::text[], $6::int[], $7::text[]) AS k(fsm, version, step)
                              WHERE k.fsm = g.fsm AND k.version = g.fsm_version AND k.step = g.step LIMIT 1) IS NULL END
              AND (g.correlation_key IS NULL OR g.correlation_guard IS NOT NULL OR 'executing' <> ALL (g.correlation_scope)
                   OR (SELECT 1 FROM public.gen_durable o WHERE o.correlation_guard = g.correlation_key LIMIT 1) IS NULL)
            ORDER BY g.eligible_at
            LIMIT $4
              FOR NO KEY UPDATE OF g SKIP LOCKED) c
     LIMIT CASE WHEN EXISTS (SELECT FROM public.gen_durable_queues p WHERE p.queue = $1) THEN 0 ELSE $4::bigint END
), limited AS ( -- as many of a gate's or rate's key as are likely to be admitted
    SELECT c.*, (c.free IS NULL OR row_number() OVER (PARTITION BY c.concurrency_key ORDER BY c.priority, c.eligible_at, c.id) <= c.free)
                AND (c.rate_limit IS NULL OR coalesce(row_number() OVER (PARTITION BY c.rate_limit ORDER BY c.priority, c.eligible_at, c.id)
                                                      <= ($16::jsonb ->> c.rate_limit)::int, true)) AS fits
      FROM candidate c
     WHERE c.gated OR c.rate_limit IS NOT NULL
), allowed AS (
    SELECT c.id, c.priority, c.eligible_at, c.concurrency_key, c.gated, c.entering
      FROM candidate c WHERE NOT c.gated AND c.rate_limit IS NULL
    UNION ALL
    SELECT l.id, l.priority, l.eligible_at, l.concurrency_key, l.gated, l.entering FROM limited l WHERE l.fits
), chosen AS (
    SELECT c.* FROM allowed c WHERE c.concurrency_key IS NULL OR c.gated
    UNION ALL
    (SELECT DISTINCT ON (c.concurrency_key) c.* FROM allowed c
      WHERE c.concurrency_key IS NOT NULL AND NOT c.gated
      ORDER BY c.concurrency_key, c.priority, c.eligible_at, c.id)
)
UPDATE public.gen_durable g
   SET status = 'executing', claims = CASE WHEN g.claims < 2147483647 THEN g.claims + 1 ELSE 1 END, locked_by = $2, lease_expires_at = now() + $3::bigint * interval '1 microsecond',
       concurrency_shard = CASE WHEN $10::jsonb ? g.concurrency_name OR g.cancel_requested IS NOT NULL AND g.concurrency_key IS NOT NULL
                                THEN -1::smallint END, updated_at = now()
 WHERE g.id = ANY (ARRAY(SELECT c.id FROM chosen c WHERE c.entering IS NULL
                      UNION ALL
                      (SELECT DISTINCT ON (c.entering) c.id FROM chosen c WHERE c.entering IS NOT NULL
                        ORDER BY c.entering, c.priority, c.eligible_at, c.id)))
RETURNING g.id, g.fsm, g.fsm_version, g.step, g.state, g.attempt, g.awaits, g.priority, g.eligible_at, g.concurrency_key,
          g.concurrency_shard, g.rate_limit, g.weight, g.correlation_key, g.parent_id, g.claims,
          CASE WHEN g.crash_step = g.step THEN least(g.crashes, g.attempt) ELSE 0 END, g.cancel_requested, g.has_inbox, g.has_children,
          (SELECT count(*) FROM candidate)::int,
          g.trace_context, g.updated_at
