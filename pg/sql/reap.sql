-- Gives back rows whose lease has expired: the worker is presumed dead, the attempt counts, and the crash counts for
-- the step it happened in.
-- $1 bigint limit · $2 timestamptz: leases that expired before it were looked at; null = from the start
-- Each crash counts an attempt, so there were no more crashes than attempts: the original engine's progress sets attempt
-- back without knowing of our count.
-- Takes the rows in lease order with SKIP LOCKED. Returns how many, their queues, from where on the next call must look, which
-- is the last lease that it took, or else a second ago (a lease is set in the future, by a statement that is committed soon), and
-- the slots they held, see release.
-- A row whose correlation key (of a scope of the original engine) is occupied meanwhile is left until it is free; of several with one key, one is taken.
-- Index: gen_durable_lease, then gen_durable_pkey from an array.
WITH expired AS MATERIALIZED (
    SELECT g.id, g.claims, g.concurrency_key, g.concurrency_shard, g.lease_expires_at,
           CASE WHEN g.correlation_guard IS NULL AND 'runnable' = ANY (g.correlation_scope) THEN g.correlation_key END AS entering
      FROM public.gen_durable g
     WHERE g.status = 'executing'
       AND g.lease_expires_at < now()
       AND g.lease_expires_at >= coalesce($2::timestamptz, '-infinity')
       AND (g.correlation_key IS NULL OR g.correlation_guard IS NOT NULL OR 'runnable' <> ALL (g.correlation_scope)
            OR (SELECT 1 FROM public.gen_durable o WHERE o.correlation_guard = g.correlation_key LIMIT 1) IS NULL)
     ORDER BY g.lease_expires_at
     LIMIT $1
       FOR NO KEY UPDATE OF g SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT e.* FROM expired e WHERE e.entering IS NULL
    UNION ALL
    (SELECT DISTINCT ON (e.entering) e.* FROM expired e WHERE e.entering IS NOT NULL ORDER BY e.entering, e.id)
), reaped AS (
    UPDATE public.gen_durable g
       SET status = 'runnable', attempt = CASE WHEN g.attempt < 2147483647 THEN g.attempt + 1 ELSE g.attempt END,
           crashes = CASE WHEN g.crash_step = g.step THEN least(g.crashes, g.attempt) + 1 ELSE 1 END, crash_step = g.step,
           locked_by = NULL, lease_expires_at = NULL, concurrency_shard = NULL, updated_at = now()
     WHERE g.id = ANY (ARRAY(SELECT t.id FROM taken t))
    RETURNING g.queue
)
SELECT u.n, u.queues, CASE WHEN l.n < $1 OR l.n = 0 THEN now() - interval '1 s' ELSE l.last END,
       coalesce(h.ids, '{}'), h.claims, h.keys, h.shards, CASE WHEN h.ids IS NOT NULL THEN pg_current_xact_id()::text::bigint ELSE 0 END
  FROM (SELECT count(*)::int AS n, coalesce(array_agg(DISTINCT r.queue), '{}') AS queues FROM reaped r) u,
       (SELECT count(*) AS n, max(e.lease_expires_at) AS last FROM expired e) l,
       (SELECT array_agg(t.id) AS ids, array_agg(t.claims) AS claims, array_agg(t.concurrency_key) AS keys, array_agg(t.concurrency_shard) AS shards
          FROM taken t WHERE t.concurrency_shard IS NOT NULL AND t.concurrency_key IS NOT NULL) h
