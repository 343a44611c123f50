-- Extends one lease, waiting for whoever holds the row.
-- $1 text worker · $2 bigint lease in µs · $3 bigint id
-- Returns a row if it was still the worker's. Index: gen_durable_pkey.
UPDATE public.gen_durable g
   SET lease_expires_at = now() + $2::bigint * interval '1 microsecond'
 WHERE g.id = $3
   AND g.locked_by = $1
   AND coalesce(g.status, 'failed') = 'executing'
RETURNING g.cancel_requested
