-- Makes the runnable row that would become eligible next eligible now. Of the test helper.
-- Returns its id. Locks: the row. Index: gen_durable_pick, read whole; gen_durable_pkey.
UPDATE public.gen_durable g
   SET eligible_at = now()
 WHERE g.id = (SELECT d.id FROM public.gen_durable d
                WHERE d.status = 'runnable' AND d.eligible_at > now()
                ORDER BY d.eligible_at, d.priority, d.id LIMIT 1)
RETURNING g.id
