-- Forgets request ids past their retention.
-- $1 bigint retention in µs · $2 bigint limit
-- Returns how many. Locks: rows in the order of their age, with SKIP LOCKED. Indexes: gen_durable_requests_age, then
-- gen_durable_requests_pkey from an array.
WITH due AS MATERIALIZED (
    SELECT q.id
      FROM public.gen_durable_requests q
     WHERE q.inserted_at < now() - $1::bigint * interval '1 microsecond'
     ORDER BY q.inserted_at
     LIMIT $2
       FOR UPDATE OF q SKIP LOCKED
), gone AS (
    DELETE FROM public.gen_durable_requests q WHERE q.id = ANY (ARRAY(SELECT due.id FROM due)) RETURNING 1
)
SELECT count(*)::int FROM gone
