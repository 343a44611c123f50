-- Instances by id, the newest first, as operators see them: those that fit among the next so many rows.
-- $1 bigint below which id, 0 = from the newest · $2 bigint how many rows to look at · $3 bigint how many to return
-- $4 text queue, '' = any · $5 text machine, '' = any · $6 text status, '' = any
-- Returns on each row the lowest id that was looked at (0 = none) and how many were; then id, machine, version, step, status,
-- queue, priority, attempt, eligible_at, correlation key, parent, last error, inserted_at, updated_at: null when none fits.
-- Locks nothing. Index: gen_durable_pkey.
WITH looked AS MATERIALIZED (
    SELECT g.id, g.fsm, g.fsm_version, g.step, g.status, g.queue, g.priority, g.attempt, g.eligible_at,
           coalesce(g.correlation_key, '') AS correlation_key, coalesce(g.parent_id, 0) AS parent_id,
           coalesce(g.last_error, '') AS last_error, g.inserted_at, g.updated_at
      FROM public.gen_durable g
     WHERE g.id < CASE WHEN $1::bigint > 0 THEN $1::bigint ELSE 9223372036854775807 END
     ORDER BY g.id DESC
     LIMIT $2
)
SELECT b.lowest, b.n, l.id, l.fsm, l.fsm_version, l.step, l.status::text, l.queue, l.priority, l.attempt, l.eligible_at,
       l.correlation_key, l.parent_id, l.last_error, l.inserted_at, l.updated_at
  FROM (SELECT coalesce(min(k.id), 0) AS lowest, count(*) AS n FROM looked k) AS b
  LEFT JOIN LATERAL
       (SELECT m.* FROM looked m
         WHERE ($4::text = '' OR m.queue = $4::text)
           AND ($5::text = '' OR m.fsm = $5::text)
           AND ($6::text = '' OR m.status = nullif($6::text, '')::public.durable_status)
         ORDER BY m.id DESC
         LIMIT $3) AS l ON true
 ORDER BY l.id DESC
