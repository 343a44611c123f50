-- Writes one row a transition into the history. A rider of the outcomes of machines that keep one.
-- $1 bigint[] ids · $2 text[] worker, a missing one is the first · $3 text[] the step that ran · $4 int[] its attempt
-- $5 text[] outcome, null = it is a transition only if a cancel makes it one · $6 text[] error or null · $7 bigint[] how long the step took, in µs · $8 int[] the number of the
-- claim, null = any of the worker
-- Only where this transaction wrote the row, proved as in flush_inbox; a row that was continued keeps updated_at, and is
-- proved by being the worker's still. It runs before the join, which writes rows that made no transition.
-- What the row says now counts: the step it goes to, its status, the reason of a cancel that turned the outcome into a
-- failure. Index: gen_durable_pkey, driven by unnest.
INSERT INTO public.gen_durable_history (instance_id, step, attempt, outcome, next_step, status, error, worker, took)
SELECT g.id, u.step, u.attempt,
       CASE WHEN g.cancel_requested IS NULL THEN u.outcome ELSE 'cancelled' END,
       CASE WHEN coalesce(g.status, 'failed') NOT IN ('done', 'failed') THEN g.step END,
       g.status, CASE WHEN coalesce(g.status, 'done') = 'failed' THEN g.last_error ELSE u.error END,
       coalesce(u.worker, ($2::text[])[1]), u.took
  FROM unnest($1::bigint[], $2::text[], $3::text[], $4::int[], $5::text[], $6::text[], $7::bigint[], $8::int[])
       AS u(id, worker, step, attempt, outcome, error, took, claim)
  JOIN public.gen_durable g ON g.id = u.id
 WHERE g.xmin = pg_current_xact_id()::xid
   AND CASE WHEN coalesce(g.status, 'failed') = 'executing'
            THEN g.locked_by = coalesce(u.worker, ($2::text[])[1]) AND (u.claim IS NULL OR g.claims = u.claim)
            ELSE g.updated_at = now() END
   AND (u.outcome IS NOT NULL OR g.cancel_requested IS NOT NULL)
