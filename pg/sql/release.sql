-- Gives claimed rows back as if they had not been claimed: attempt and eligible_at as they were.
-- $1 text worker · $2 bigint[] ids · $3 int[] the numbers of the claims that are given up: a release that comes late, when its row
-- was given back by an unheld look and claimed anew by the same worker, finds another number and leaves the row alone.
-- Takes the rows in id order, skipping those somebody holds. Returns how many were given back, of how many of those a cancel
-- was requested (a request waits for the lock or is seen here: afterwards it ends the row itself), and how many are still
-- the worker's; then the gates' slots that they held, as parallel arrays (a negative shard
-- is a slot only where another limiter than ours gave it), and if there are any the transaction's id. What is
-- taken is locked, so that the update misses none of it: the old values are those of the slots given up.
-- A row whose correlation key (of a scope of the original engine) is occupied meanwhile stays.
-- Guard and index as in flush_next.
WITH mine AS MATERIALIZED (
    SELECT g.id, g.claims, g.concurrency_key, g.concurrency_shard,
           CASE WHEN g.correlation_guard IS NULL AND 'runnable' = ANY (g.correlation_scope) THEN g.correlation_key END AS entering
      FROM unnest($2::bigint[], $3::int[]) AS u(id, claim)
      JOIN public.gen_durable g ON g.id = u.id AND g.claims = u.claim
     WHERE g.locked_by = $1
       AND coalesce(g.status, 'failed') = 'executing'
       AND (g.correlation_key IS NULL OR g.correlation_guard IS NOT NULL OR 'runnable' <> ALL (g.correlation_scope)
            OR (SELECT 1 FROM public.gen_durable o WHERE o.correlation_guard = g.correlation_key LIMIT 1) IS NULL)
     ORDER BY g.id
       FOR NO KEY UPDATE OF g SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT m.* FROM mine m WHERE m.entering IS NULL
    UNION ALL
    (SELECT DISTINCT ON (m.entering) m.* FROM mine m WHERE m.entering IS NOT NULL ORDER BY m.entering, m.id)
), released AS (
    UPDATE public.gen_durable g
       SET status = 'runnable', locked_by = NULL, lease_expires_at = NULL, concurrency_shard = NULL, updated_at = now()
     WHERE g.id = ANY (ARRAY(SELECT t.id FROM taken t))
    RETURNING g.cancel_requested
)
SELECT (SELECT count(*)::int FROM released), (SELECT count(r.cancel_requested)::int FROM released r),
       (SELECT count(*)::int FROM unnest($2::bigint[], $3::int[]) AS u(id, claim)
          JOIN public.gen_durable g ON g.id = u.id AND g.claims = u.claim
         WHERE g.locked_by = $1 AND coalesce(g.status, 'failed') = 'executing') - (SELECT count(*)::int FROM released),
       coalesce(h.ids, '{}'), h.claims, h.keys, h.shards, CASE WHEN h.ids IS NOT NULL THEN pg_current_xact_id()::text::bigint ELSE 0 END
  FROM (SELECT array_agg(t.id) AS ids, array_agg(t.claims) AS claims, array_agg(t.concurrency_key) AS keys, array_agg(t.concurrency_shard) AS shards
          FROM taken t WHERE t.concurrency_shard IS NOT NULL AND t.concurrency_key IS NOT NULL) h
