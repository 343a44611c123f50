-- Deletes records of instances that are no more: of those that were deleted by hand, or by the original engine, which
-- knows no histories. Those that collect deletes take theirs along.
-- $1 bigint the instance after which to look · $2 bigint how many records to look at
-- Returns how many were deleted, and the last instance that was looked at; 0 = that was the end of the table.
-- Locks: records in the order of the primary key, with SKIP LOCKED; nobody else locks any but collect.
-- Indexes: gen_durable_history_pkey from the position on, gen_durable_pkey once an instance.
WITH page AS MATERIALIZED (
    SELECT h.instance_id
      FROM public.gen_durable_history h
     WHERE h.instance_id > $1::bigint
     ORDER BY h.instance_id, h.id
     LIMIT $2::bigint
), orphan AS MATERIALIZED (
    SELECT p.instance_id
      FROM (SELECT DISTINCT page.instance_id FROM page) AS p
     WHERE (SELECT 1 FROM public.gen_durable g WHERE g.id = p.instance_id) IS NULL
), held AS MATERIALIZED (
    SELECT h.instance_id, h.id
      FROM public.gen_durable_history h
     WHERE h.instance_id = ANY (ARRAY(SELECT o.instance_id FROM orphan o))
     ORDER BY h.instance_id, h.id
       FOR UPDATE OF h SKIP LOCKED
), gone AS (
    DELETE FROM public.gen_durable_history h
     USING held
     WHERE h.instance_id = held.instance_id AND h.id = held.id
    RETURNING 1
)
SELECT (SELECT count(*)::int FROM gone),
       CASE WHEN (SELECT count(*) FROM page) = $2::bigint THEN (SELECT max(page.instance_id) FROM page) ELSE 0 END
