-- Tells the parents of instances that have just ended: each parent once, by the number of its children among them.
-- A rider of flush and of Cancel; the last one, because it writes rows whose xmin must not prove anything afterwards.
-- $1 bigint[] ids of the ended instances, each once
-- $2 boolean proven: as in flush_inbox
-- Returns the queues of the parents that became runnable, each once.
-- Locks: the parents, in descending id order as everywhere, after the children's rows. The new values come from the parent's own row, so that
-- waiting for another flush's decrement ends in the right number; what crosses the CTEs are counts of our own rows.
-- A parent that is terminal already is counted down too (an operator may retry it), but keeps updated_at: for a
-- terminal row that is the time it ended. A decrement that wakes nobody writes no indexed column.
-- Indexes: gen_durable_pkey for both. Cost: a probe a child, two and an update a parent.
WITH ended AS MATERIALIZED (
    SELECT c.parent_id AS id, count(*)::int AS n
      FROM unnest($1::bigint[]) AS u(id)
      JOIN public.gen_durable c ON c.id = u.id
     WHERE c.parent_id IS NOT NULL
       AND coalesce(c.status, 'runnable') IN ('done', 'failed')
       AND ($2::boolean OR (c.xmin = pg_current_xact_id()::xid AND c.updated_at = now()))
     GROUP BY c.parent_id
), held AS MATERIALIZED (
    SELECT p.id, e.n
      FROM ended e
      JOIN public.gen_durable p ON p.id = e.id
     ORDER BY p.id DESC
       FOR NO KEY UPDATE OF p
), joined AS (
    UPDATE public.gen_durable p
       SET children_pending = greatest(p.children_pending - h.n, 0),
           status = CASE WHEN p.status = 'awaiting_children' AND p.children_pending <= h.n
                         THEN 'runnable' ELSE p.status END,
           eligible_at = CASE WHEN p.status = 'awaiting_children' AND p.children_pending <= h.n
                              THEN now() ELSE p.eligible_at END,
           updated_at = CASE WHEN p.status = 'awaiting_children' AND p.children_pending <= h.n
                             THEN now() ELSE p.updated_at END
      FROM held h
     WHERE p.id = h.id
    RETURNING p.queue, p.status
)
SELECT DISTINCT j.queue FROM joined j WHERE j.status = 'runnable'
