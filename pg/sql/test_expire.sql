-- Ends the leases of all rows of a worker, as if it had died long ago. Of the test helper; reap does the rest.
-- $1 text worker
-- Locks: the rows, in no order. Index: gen_durable_lease, read whole.
UPDATE public.gen_durable g
   SET lease_expires_at = now() - interval '1 second'
 WHERE g.status = 'executing' AND g.locked_by = $1
