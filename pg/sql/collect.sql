-- Deletes terminal instances past their retention, with their signals, dedup keys and histories.
-- $1 bigint retention of done in µs · $2 bigint of failed · $3 bigint limit
-- $4 timestamptz, $5 bigint: the updated_at and id after which to look; null and 0 = from the start
-- Spared: a terminal child while its parent is not terminal, because the parent has yet to see it; a terminal parent
-- while a child is not, because the child's flush will want the parent's row after its own, and the deletion takes them
-- the other way round.
-- Returns how many were deleted, and the updated_at and id of the last (null = none).
-- Locks: rows in the order of their ending, with SKIP LOCKED. Index: gen_durable_gc for the ids, from the position on
-- (rows that are spared or not due yet are walked once a pass, not once a batch); then gen_durable_pkey from an array;
-- gen_durable_parent, signals_target and gen_durable_dedup_pkey for the foreign keys (about 10 µs a row);
-- gen_durable_history_pkey, which costs next to nothing where no machine keeps a history.
WITH due AS MATERIALIZED (
    SELECT g.id, g.updated_at
      FROM public.gen_durable g
     WHERE g.status IN ('done', 'failed')
       AND g.updated_at < now() - least($1::bigint, $2::bigint) * interval '1 microsecond'
       AND g.updated_at >= coalesce($4::timestamptz, '-infinity')
       AND (g.updated_at, g.id) > (coalesce($4::timestamptz, '-infinity'), $5::bigint)
       AND g.updated_at < now() - CASE WHEN g.status = 'done' THEN $1::bigint ELSE $2::bigint END * interval '1 microsecond'
       AND (g.parent_id IS NULL
            OR (SELECT p.status NOT IN ('done', 'failed') FROM public.gen_durable p WHERE p.id = g.parent_id) IS NOT TRUE)
       AND (NOT g.has_children
            OR (SELECT 1 FROM public.gen_durable c
                 WHERE c.parent_id = g.id AND c.status NOT IN ('done', 'failed') LIMIT 1) IS NULL)
     ORDER BY g.updated_at, g.id
     LIMIT $3
       FOR UPDATE OF g SKIP LOCKED
), gone AS (
    DELETE FROM public.gen_durable g
     WHERE g.id = ANY (ARRAY(SELECT due.id FROM due))
    RETURNING 1
), forgotten AS (
    DELETE FROM public.gen_durable_history h
     WHERE h.instance_id = ANY (ARRAY(SELECT due.id FROM due))
), last AS (
    SELECT due.updated_at, due.id FROM due ORDER BY due.updated_at DESC, due.id DESC LIMIT 1
)
SELECT (SELECT count(*)::int FROM gone), (SELECT last.updated_at FROM last), coalesce((SELECT last.id FROM last), 0)
