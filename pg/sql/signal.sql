-- Delivers signals to instances, named by id or by the correlation key they occupy.
-- $1 bigint[] id, 0 = by key · $2 text[] key, '' = by id · $3 text[] name · $4 text[] payload, JSON
-- $5 text[] dedup key, '' = none · $6 text the identity sequence of signals · $7 text[] trace context, '' = none; null =
-- none at all
-- Returns, in no order: a row (position from 1, target, null, null, null) for each entry whose target was not refused; a
-- row (position, null, signal, null, null) for each that was stored; a row (null, target, null, queue, woken) for each
-- target that was not refused, and lives. A target by id that has ended since it accepted the entry's dedup key is not refused:
-- whoever repeats the signal, because the answer was lost, learns that it was accepted.
-- Locks: the targets first, in descending id order: a child has a higher id than its parent, and whoever ends a child
-- takes the child's row before the parent's. With a strength that lets foreign-key checks pass. Everything after that
-- happens under those locks: so what is read in "held" is the truth until we commit, a racing park is waited for and seen,
-- and a target that ended while we waited gets nothing. Then dedup keys in order.
-- The flip is a CASE on the row itself, never a filter on its status: our snapshot may show the row as it was before it
-- parked. A row that need not change is left alone, which "held" may decide because it is locked.
-- A row of the original engine that would enter its correlation scope by the wake while its key is occupied, or beside
-- another one of the batch, stays parked; its deadline is now, so that the sweep wakes it once the key is free.
-- The signals' numbers are drawn under the locks, so those of one target commit in their order.
-- The memberships are hashed subplans: a batch of 60,000 against itself must not become a nested loop.
-- Indexes: gen_durable_pkey, gen_durable_correlation, gen_durable_dedup_pkey; writes signals' three.
WITH entry AS MATERIALIZED (
    SELECT u.position, u.key, u.name, u.payload, u.dedup_key, u.trace,
           CASE WHEN u.key = '' THEN u.id
                ELSE (SELECT g.id FROM public.gen_durable g WHERE g.correlation_guard = u.key) END AS target
      FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $7::text[]) WITH ORDINALITY
           AS u(id, key, name, payload, dedup_key, trace, position)
), held AS MATERIALIZED (
    SELECT g.id, g.correlation_guard, g.queue, g.has_inbox,
           CASE WHEN g.status = 'awaiting_signal' THEN g.awaits END AS awaits,
           CASE WHEN g.correlation_guard IS NULL AND 'runnable' = ANY (g.correlation_scope) THEN g.correlation_key END AS entering
      FROM public.gen_durable g
     WHERE g.id = ANY (ARRAY(SELECT DISTINCT entry.target FROM entry))
       AND g.status NOT IN ('done', 'failed')
     ORDER BY g.id DESC
       FOR NO KEY UPDATE OF g
), addressed AS MATERIALIZED (
    SELECT e.position, e.target, e.name, e.payload, e.dedup_key, e.trace,
           row_number() OVER (PARTITION BY e.target, e.dedup_key ORDER BY e.position) AS occurrence
      FROM entry e
     WHERE CASE WHEN e.key = '' THEN e.target IN (SELECT h.id FROM held h)
                ELSE (e.target, e.key) IN (SELECT h.id, h.correlation_guard FROM held h
                                            WHERE h.correlation_guard IS NOT NULL) END
), remembered AS (
    INSERT INTO public.gen_durable_dedup AS d (target_id, dedup_key)
    SELECT a.target, a.dedup_key
      FROM addressed a
     WHERE a.dedup_key <> '' AND a.occurrence = 1
     ORDER BY a.target, a.dedup_key
    ON CONFLICT (target_id, dedup_key) DO NOTHING
    RETURNING d.target_id, d.dedup_key
), accepted AS MATERIALIZED (
    SELECT n.position, n.target, n.name, n.payload, n.dedup_key, n.trace, nextval($6::text::regclass) AS id
      FROM (SELECT a.position, a.target, a.name, a.payload, a.dedup_key, a.trace
              FROM addressed a
             WHERE CASE WHEN a.dedup_key = '' THEN true
                        ELSE a.occurrence = 1 AND (a.target, a.dedup_key) IN
                             (SELECT r.target_id, r.dedup_key FROM remembered r) END
             ORDER BY a.position
            OFFSET 0) AS n
), stored AS (
    INSERT INTO public.signals AS s (id, target_id, name, payload, dedup_key, trace_context)
    OVERRIDING SYSTEM VALUE
    SELECT a.id, a.target, a.name, a.payload::jsonb, nullif(a.dedup_key, ''), nullif(a.trace, '')
      FROM accepted a
    ON CONFLICT DO NOTHING
    RETURNING s.id, s.target_id, s.name
), told AS (
    SELECT t.target_id, t.names, h.entering, h.awaits && t.names AS awaited
      FROM (SELECT s.target_id, array_agg(s.name) AS names FROM stored s GROUP BY s.target_id) AS t
      JOIN held h ON h.id = t.target_id
     WHERE NOT h.has_inbox OR h.awaits && t.names
), entrant AS (
    SELECT DISTINCT ON (t.entering) t.target_id
      FROM told t
     WHERE t.entering IS NOT NULL AND t.awaited
       AND (SELECT 1 FROM public.gen_durable o WHERE o.correlation_guard = t.entering LIMIT 1) IS NULL
     ORDER BY t.entering, t.target_id
), woken AS (
    UPDATE public.gen_durable g
       SET has_inbox = true,
           status = CASE WHEN g.status = 'awaiting_signal' AND g.awaits && t.names AND NOT t.shut
                         THEN 'runnable' ELSE g.status END,
           eligible_at = CASE WHEN g.status = 'awaiting_signal' AND g.awaits && t.names
                              THEN now() ELSE g.eligible_at END,
           await_deadline = CASE WHEN g.status = 'awaiting_signal' AND g.awaits && t.names
                                 THEN CASE WHEN t.shut THEN now() END ELSE g.await_deadline END,
           updated_at = CASE WHEN g.status = 'awaiting_signal' AND g.awaits && t.names
                             THEN now() ELSE g.updated_at END
      FROM (SELECT t.target_id, t.names,
                   CASE WHEN t.entering IS NULL THEN false
                        ELSE t.target_id NOT IN (SELECT e.target_id FROM entrant e) END AS shut
              FROM told t) AS t
     WHERE g.id = t.target_id
    RETURNING g.id, g.status
)
SELECT a.position, a.target, NULL::bigint AS signal, NULL::text AS queue, NULL::boolean AS woken FROM addressed a
UNION ALL
SELECT a.position, NULL, a.id, NULL, NULL FROM accepted a WHERE a.id IN (SELECT s.id FROM stored s)
UNION ALL
SELECT NULL, h.id, NULL, h.queue,
       h.awaits IS NOT NULL AND h.id IN (SELECT w.id FROM woken w WHERE w.status = 'runnable')
  FROM held h
UNION ALL
SELECT e.position, e.target, NULL, NULL, NULL
  FROM entry e
 WHERE CASE WHEN e.key = '' AND e.dedup_key <> '' AND e.target NOT IN (SELECT h.id FROM held h)
            THEN (SELECT true FROM public.gen_durable_dedup d WHERE d.target_id = e.target AND d.dedup_key = e.dedup_key)
            ELSE false END
