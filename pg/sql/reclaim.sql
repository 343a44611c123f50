-- Gives back the claims of earlier incarnations of a node: those of the one it replaces at once, those of any other only
-- when their lease was not extended lately. Counted as the reaper counts, see reap.
-- $1 text engine · $2 text node, as in the claim identities · $3 text our incarnation
-- $4 text the replaced incarnation, '' = none · $5 bigint how far ahead of now, in µs, a stale lease may end at most
-- A claim identity is taken apart by its fixed places: engine up to the first ':', one '@', a '-' and 16 hex digits at the
-- end. So the node "a" never takes the claims of a node "a-b", nor those of the original engine's nodes.
-- Takes the rows in id order with SKIP LOCKED. Returns how many, their queues, and the slots they held, see release.
-- Index: gen_durable_lease, all executing rows; then gen_durable_pkey from an array.
WITH orphan AS MATERIALIZED (
    SELECT g.id, g.claims, g.concurrency_key, g.concurrency_shard,
           CASE WHEN g.correlation_guard IS NULL AND 'runnable' = ANY (g.correlation_scope) THEN g.correlation_key END AS entering
      FROM public.gen_durable g
     WHERE g.status = 'executing'
       AND split_part(g.locked_by, ':', 1) = $1
       AND split_part(g.locked_by, '@', 3) = ''
       AND left(split_part(g.locked_by, '@', 2), -16) = $2 || '-'
       AND right(g.locked_by, 16) ~ '^[0-9a-f]{16}$'
       AND right(g.locked_by, 16) <> $3
       AND (right(g.locked_by, 16) = $4 OR g.lease_expires_at < now() + $5::bigint * interval '1 microsecond')
       AND (g.correlation_key IS NULL OR g.correlation_guard IS NOT NULL OR 'runnable' <> ALL (g.correlation_scope)
            OR (SELECT 1 FROM public.gen_durable o WHERE o.correlation_guard = g.correlation_key LIMIT 1) IS NULL)
     ORDER BY g.id
       FOR NO KEY UPDATE OF g SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT o.* FROM orphan o WHERE o.entering IS NULL
    UNION ALL
    (SELECT DISTINCT ON (o.entering) o.* FROM orphan o WHERE o.entering IS NOT NULL ORDER BY o.entering, o.id)
), reclaimed AS (
    UPDATE public.gen_durable g
       SET status = 'runnable', attempt = CASE WHEN g.attempt < 2147483647 THEN g.attempt + 1 ELSE g.attempt END,
           crashes = CASE WHEN g.crash_step = g.step THEN least(g.crashes, g.attempt) + 1 ELSE 1 END, crash_step = g.step,
           locked_by = NULL, lease_expires_at = NULL, concurrency_shard = NULL, updated_at = now()
     WHERE g.id = ANY (ARRAY(SELECT t.id FROM taken t))
    RETURNING g.queue
)
SELECT u.n, u.queues,
       coalesce(h.ids, '{}'), h.claims, h.keys, h.shards, CASE WHEN h.ids IS NOT NULL THEN pg_current_xact_id()::text::bigint ELSE 0 END
  FROM (SELECT count(*)::int AS n, coalesce(array_agg(DISTINCT r.queue), '{}') AS queues FROM reclaimed r) u,
       (SELECT array_agg(t.id) AS ids, array_agg(t.claims) AS claims, array_agg(t.concurrency_key) AS keys, array_agg(t.concurrency_shard) AS shards
          FROM taken t WHERE t.concurrency_shard IS NOT NULL AND t.concurrency_key IS NOT NULL) h
