-- Proves that a worker still owns a row, and keeps it so until the end of the transaction, in which its outcome is to be
-- committed together with statements of the user's.
-- $1 bigint id · $2 text worker · $3 int the number of the claim, 0 = any of the worker
-- Returns no row when it is lost, or was committed already by an earlier attempt, whose backend it waits for; else the
-- reason of a requested cancel, and the number of this transaction.
-- Locks: the row. Index: gen_durable_pkey. The coalesce as in flush_next.
SELECT g.cancel_requested, pg_current_xact_id()::text
  FROM public.gen_durable g
 WHERE g.id = $1
   AND g.locked_by = $2
   AND ($3::int = 0 OR g.claims = $3::int)
   AND coalesce(g.status, 'failed') = 'executing'
   FOR NO KEY UPDATE OF g
