-- Claims runnable rows of one queue.
-- $1 text queue · $2 text worker · $3 bigint lease in µs · $4 bigint limit
-- $5 text[] machines, $6 int[] versions, $7 text[] steps that this process cannot run; all null = none
-- The scan walks gen_durable_pick in its order and stops after the limit; rows that somebody holds are skipped, so that a
-- claim never waits. A row whose concurrency key is taken is filtered by one probe of the very index that forbids the
-- second one, and a batch takes one row a key; a race that slips through is a unique violation, and the caller claims
-- again. The scalar subqueries with LIMIT are deliberate: the planner can neither hash them nor turn them into joins.
-- A row of the original engine that enters its correlation scope only now is left out while its key is occupied, and a
-- batch takes one of those that enter with one key.
-- The rows are then updated by primary key, from an array: the plan does not depend on any estimate.
-- Of a paused queue (see queue_pause) not a row is read: whether it is one is asked once, before the scan begins.
-- Rows come in no particular order.
WITH candidate AS MATERIALIZED (
    SELECT g.id, g.priority, g.eligible_at, g.concurrency_key,
           CASE WHEN g.correlation_guard IS NULL AND 'executing' = ANY (g.correlation_scope) THEN g.correlation_key END AS entering
      FROM public.gen_durable g
     WHERE g.queue = $1
       AND g.status = 'runnable'
       AND g.eligible_at <= now()
       AND (g.concurrency_key IS NULL
            OR (SELECT 1 FROM public.gen_durable x
                 WHERE x.concurrency_key = g.concurrency_key AND x.concurrency_key IS NOT NULL
                   AND x.status = 'executing' AND x.concurrency_shard IS NULL LIMIT 1) IS NULL)
       AND CASE WHEN $5::text[] IS NULL THEN true
                ELSE (SELECT 1 FROM unnest($5::text[], $6::int[], $7::text[]) AS k(fsm, version, step)
                       WHERE k.fsm = g.fsm AND k.version = g.fsm_version AND k.step = g.step LIMIT 1) IS NULL END
       AND (g.correlation_key IS NULL OR g.correlation_guard IS NOT NULL OR 'executing' <> ALL (g.correlation_scope)
            OR (SELECT 1 FROM public.gen_durable o WHERE o.correlation_guard = g.correlation_key LIMIT 1) IS NULL)
     ORDER BY g.priority, g.eligible_at
     LIMIT CASE WHEN EXISTS (SELECT FROM public.gen_durable_queues p WHERE p.queue = $1) THEN 0 ELSE $4::bigint END
       FOR NO KEY UPDATE OF g SKIP LOCKED
), chosen AS (
    SELECT c.* FROM candidate c WHERE c.concurrency_key IS NULL
    UNION ALL
    (SELECT DISTINCT ON (c.concurrency_key) c.* FROM candidate c WHERE c.concurrency_key IS NOT NULL
      ORDER BY c.concurrency_key, c.priority, c.eligible_at, c.id)
)
UPDATE public.gen_durable g
   SET status = 'executing', claims = CASE WHEN g.claims < 2147483647 THEN g.claims + 1 ELSE 1 END, locked_by = $2, lease_expires_at = now() + $3::bigint * interval '1 microsecond',
       updated_at = now()
 WHERE g.id = ANY (ARRAY(SELECT c.id FROM chosen c WHERE c.entering IS NULL
                      UNION ALL
                      (SELECT DISTINCT ON (c.entering) c.id FROM chosen c WHERE c.entering IS NOT NULL
                        ORDER BY c.entering, c.priority, c.eligible_at, c.id)))
RETURNING g.id, g.fsm, g.fsm_version, g.step, g.state, g.attempt, g.awaits, g.priority, g.eligible_at, g.concurrency_key,
          g.concurrency_shard, g.rate_limit, g.weight, g.correlation_key, g.parent_id, g.claims,
          CASE WHEN g.crash_step = g.step THEN least(g.crashes, g.attempt) ELSE 0 END, g.cancel_requested, g.has_inbox, g.has_children
