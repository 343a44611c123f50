-- Cancels one instance: fails it if it is not executing, else asks its worker to.
-- $1 bigint id · $2 text the correlation key it must still occupy, '' = whatever it is · $3 text reason
-- Returns a row if there is such an instance and it was not terminal: whether it ended now, its queue, and the number of its last claim. The branch is a CASE on the locked row: our snapshot may show it as it was before it was claimed.
-- Locks: the row. Index: gen_durable_pkey.
UPDATE public.gen_durable g
   SET status = CASE WHEN g.status = 'executing' THEN g.status ELSE 'failed' END,
       last_error = CASE WHEN g.status = 'executing' THEN g.last_error ELSE 'cancelled: ' || $3::text END,
       cancel_requested = CASE WHEN g.status = 'executing' THEN coalesce(g.cancel_requested, $3::text) END,
       awaits = CASE WHEN g.status = 'executing' THEN g.awaits END,
       await_deadline = CASE WHEN g.status = 'executing' THEN g.await_deadline END,
       updated_at = CASE WHEN g.status = 'executing' THEN g.updated_at ELSE now() END
 WHERE g.id = $1::bigint
   AND g.status NOT IN ('done', 'failed')
   AND ($2::text = '' OR g.correlation_guard = $2::text)
RETURNING g.status = 'failed', g.queue, g.claims
