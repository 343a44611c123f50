-- Extends the leases of the rows a worker owns.
-- $1 text worker · $2 bigint lease in µs · $3 bigint[] ids
-- Takes the rows in id order and skips those somebody holds just now: a beat never waits. A row is named twice: once
-- with true if it was extended, once with false if the snapshot shows it as the worker's; a row that is named with false
-- alone is locked, one that is not named is lost. Also an expired lease is extended while nobody has taken the row.
-- Guard and index as in flush_next.
WITH mine AS MATERIALIZED (
    SELECT g.id
      FROM unnest($3::bigint[]) AS u(id)
      JOIN public.gen_durable g ON g.id = u.id
     WHERE g.locked_by = $1
       AND coalesce(g.status, 'failed') = 'executing'
     ORDER BY g.id
       FOR NO KEY UPDATE OF g SKIP LOCKED
), extended AS (
    UPDATE public.gen_durable g
       SET lease_expires_at = now() + $2::bigint * interval '1 microsecond'
     WHERE g.id = ANY (ARRAY(SELECT m.id FROM mine m))
    RETURNING g.id, g.cancel_requested
)
SELECT e.id, true, e.cancel_requested FROM extended e
UNION ALL
SELECT g.id, false, g.cancel_requested
  FROM unnest($3::bigint[]) AS u(id)
  JOIN public.gen_durable g ON g.id = u.id
 WHERE g.locked_by = $1
   AND coalesce(g.status, 'failed') = 'executing'
