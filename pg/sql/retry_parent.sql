-- Locks the parent of a failed instance that is to be retried; one that waits for its children waits for one more. After
-- retry_lock, in its transaction.
-- $1 bigint id of the child
-- The parent's status is looked at under its lock: it may be about to park. Nothing is written to any other parent.
-- Locks: the parent. Index: gen_durable_pkey.
WITH parent AS MATERIALIZED (
    SELECT p.id, p.status
      FROM public.gen_durable p
     WHERE p.id = (SELECT c.parent_id FROM public.gen_durable c WHERE c.id = $1 AND c.status = 'failed')
       FOR NO KEY UPDATE OF p
)
UPDATE public.gen_durable p
   SET children_pending = p.children_pending + 1
 WHERE p.id = (SELECT r.id FROM parent r WHERE coalesce(r.status, 'failed') = 'awaiting_children')
