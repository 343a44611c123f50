-- Deletes the rows of flushers that have not flushed for long. One that was merely idle opens its row anew.
-- $1 bigint how long in µs
-- Returns how many. Locks: rows in name order, with SKIP LOCKED. A small table, read whole.
WITH due AS MATERIALIZED (
    SELECT f.name
      FROM public.gen_durable_flushers f
     WHERE f.beat < now() - $1::bigint * interval '1 microsecond'
     ORDER BY f.name
       FOR UPDATE OF f SKIP LOCKED
), gone AS (
    DELETE FROM public.gen_durable_flushers f WHERE f.name = ANY (ARRAY(SELECT due.name FROM due)) RETURNING 1
)
SELECT count(*)::int FROM gone
