-- Lets the awaits of parked rows time out now. Of the test helper; wake does the rest.
-- $1 bigint[] which rows; null = all
-- Returns the ids. Locks: the rows, in no order. Reads all parked rows with a deadline.
UPDATE public.gen_durable g
   SET await_deadline = now()
 WHERE g.status = 'awaiting_signal' AND g.await_deadline IS NOT NULL
   AND ($1::bigint[] IS NULL OR g.id = ANY ($1::bigint[]))
RETURNING g.id
