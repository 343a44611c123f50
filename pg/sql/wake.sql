-- Wakes parked rows whose await has timed out. A timeout is a wake, not a failure: attempt stays.
-- $1 bigint limit · $2 timestamptz: deadlines before it were looked at; null = from the start
-- Takes the rows in the order of their deadlines with SKIP LOCKED. Returns how many, their queues, and from where on the next call
-- must look: the last deadline that it took, or else a second ago. One that was set by a transaction that took longer than its
-- timeout and a second is found from the start only.
-- Index: gen_durable_await_deadline, then gen_durable_pkey from an array.
WITH due AS MATERIALIZED (
    SELECT g.id, g.await_deadline, CASE WHEN g.correlation_guard IS NULL AND 'runnable' = ANY (g.correlation_scope) THEN g.correlation_key END AS entering
      FROM public.gen_durable g
     WHERE g.status = 'awaiting_signal'
       AND g.await_deadline IS NOT NULL
       AND g.await_deadline <= now()
       AND g.await_deadline >= coalesce($2::timestamptz, '-infinity')
       AND (g.correlation_key IS NULL OR g.correlation_guard IS NOT NULL OR 'runnable' <> ALL (g.correlation_scope)
            OR (SELECT 1 FROM public.gen_durable o WHERE o.correlation_guard = g.correlation_key LIMIT 1) IS NULL)
     ORDER BY g.await_deadline
     LIMIT $1
       FOR NO KEY UPDATE OF g SKIP LOCKED
), woken AS (
    UPDATE public.gen_durable g
       SET status = 'runnable', await_deadline = NULL, eligible_at = now(), updated_at = now()
     WHERE g.id = ANY (ARRAY(SELECT d.id FROM due d WHERE d.entering IS NULL
                          UNION ALL
                          (SELECT DISTINCT ON (d.entering) d.id FROM due d WHERE d.entering IS NOT NULL
                            ORDER BY d.entering, d.id)))
    RETURNING g.queue
)
SELECT u.n, u.queues, CASE WHEN l.n < $1 OR l.n = 0 THEN now() - interval '1 s' ELSE l.last END
  FROM (SELECT count(*)::int AS n, coalesce(array_agg(DISTINCT w.queue), '{}') AS queues FROM woken w) u,
       (SELECT count(*) AS n, max(d.await_deadline) AS last FROM due d) l
