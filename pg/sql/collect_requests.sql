-- Forgets request ids past their retention.
-- $1 bigint retention in µs · $2 bigint limit · $3 timestamptz after which to look; null = from the start
-- Returns how many, and the inserted_at of the last (null = none). Locks: rows in the order of their age, with SKIP LOCKED. Indexes: gen_durable_requests_age, then
-- gen_durable_requests_pkey from an array.
WITH due AS MATERIALIZED (
    SELECT q.id, q.inserted_at
      FROM public.gen_durable_requests q
     WHERE q.inserted_at < now() - $1::bigint * interval '1 microsecond'
       AND q.inserted_at >= coalesce($3::timestamptz, '-infinity')
     ORDER BY q.inserted_at
     LIMIT $2
       FOR UPDATE OF q SKIP LOCKED
), gone AS (
    DELETE FROM public.gen_durable_requests q WHERE q.id = ANY (ARRAY(SELECT due.id FROM due)) RETURNING 1
)
SELECT count(*)::int, (SELECT max(due.inserted_at) FROM due) FROM gone
