-- Deletes the awaited signals that the steps which made progress were handed. A rider of Next and of Children.
-- $1 bigint[] target · $2 bigint[] signal
-- Only where this transaction wrote the target's row, proved as in flush_inbox; it runs before the join, which writes
-- rows that made no progress. IS TRUE hides the target from the planner, which would read a whole inbox for each signal.
-- Indexes: signals_pkey, gen_durable_pkey.
DELETE FROM public.signals s
 USING unnest($1::bigint[], $2::bigint[]) AS u(target, id), public.gen_durable g
 WHERE g.id = u.target
   AND g.xmin = pg_current_xact_id()::xid AND g.updated_at = now()
   AND s.id = u.id AND (s.target_id = g.id) IS TRUE
