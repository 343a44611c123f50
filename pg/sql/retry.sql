-- Makes a failed instance runnable at its last step, with its last state, as if that step had never been tried. After
-- retry_parent, in its transaction: whether the parent waits is known for certain, and if not, the child is cut off from it.
-- $1 bigint id
-- Fails with a unique violation when its correlation key is taken.
-- Returns the queue. Locks: the row. Index: gen_durable_pkey.
UPDATE public.gen_durable g
   SET status = 'runnable', attempt = 0, crashes = 0, crash_step = NULL, cancel_requested = NULL, result = NULL,
       awaits = NULL, await_deadline = NULL, eligible_at = now(), updated_at = now(),
       parent_id = CASE WHEN (SELECT p.status FROM public.gen_durable p WHERE p.id = g.parent_id) = 'awaiting_children'
                        THEN g.parent_id END
 WHERE g.id = $1
   AND g.status = 'failed'
RETURNING g.queue
