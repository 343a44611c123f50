-- Makes a failed instance runnable at its last step, with its last state, as if that step had never been tried, and notes so in
-- its history. After retry_parent, in its transaction: whether the parent waits is known for certain, and if not, the child is
-- cut off from it.
-- $1 bigint id · $2 text[] the machines that keep a history, as far as this process knows
-- An instance that has a history already gets the record too, whoever retries it. It is one statement, so a retry that did
-- nothing leaves no record, also inside a savepoint, where no rider could prove what it follows.
-- Fails with a unique violation when its correlation key is taken.
-- Returns the queue. Locks: the row. Indexes: gen_durable_pkey, gen_durable_history_pkey.
WITH retried AS (
    UPDATE public.gen_durable g
       SET status = 'runnable', attempt = 0, crashes = 0, crash_step = NULL, cancel_requested = NULL, result = NULL,
           awaits = NULL, await_deadline = NULL, eligible_at = now(), updated_at = now(),
           parent_id = CASE WHEN (SELECT p.status FROM public.gen_durable p WHERE p.id = g.parent_id) = 'awaiting_children'
                            THEN g.parent_id END
     WHERE g.id = $1
       AND g.status = 'failed'
    RETURNING g.id, g.fsm, g.step, g.attempt, g.status, g.queue
), noted AS (
    INSERT INTO public.gen_durable_history (instance_id, step, attempt, outcome, next_step, status)
    SELECT r.id, r.step, r.attempt, 'retried', r.step, r.status
      FROM retried r
     WHERE r.fsm = ANY ($2::text[])
        OR (SELECT 1 FROM public.gen_durable_history h WHERE h.instance_id = r.id LIMIT 1) IS NOT NULL
)
SELECT r.queue FROM retried r
