-- Deletes the rows of nodes that have not beaten for long.
-- $1 bigint how long in µs
-- Returns how many. Locks: rows in the key's order, with SKIP LOCKED. A small table, read whole.
WITH due AS MATERIALIZED (
    SELECT n.engine, n.node
      FROM public.gen_durable_nodes n
     WHERE n.beat < now() - $1::bigint * interval '1 microsecond'
     ORDER BY n.engine, n.node
       FOR UPDATE OF n SKIP LOCKED
), gone AS (
    DELETE FROM public.gen_durable_nodes n
     WHERE (n.engine, n.node) IN (SELECT due.engine, due.node FROM due)
    RETURNING 1
)
SELECT count(*)::int FROM gone
