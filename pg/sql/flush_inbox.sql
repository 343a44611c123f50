-- Deletes the whole inbox of instances that have just ended. A rider of flush and of Cancel.
-- $1 bigint[] ids, each once
-- $2 boolean proven: the caller knows that it ended them itself, in this transaction. Otherwise (a pipeline, where the
--    ids were sent before anybody knew which outcomes hold) a row counts only if its visible version was written by
--    this very transaction: xmin is ours, and updated_at is the transaction's now(), which rules out a version from
--    4 billion transactions ago with the same 32-bit number. Not for use after a savepoint, where xmin differs.
-- Locks: signals of rows whose lock this transaction holds already. Indexes: gen_durable_pkey, signals_target.
-- Cost: one probe a row, and one more for those that may have an inbox.
DELETE FROM public.signals s
 USING unnest($1::bigint[]) AS u(id), public.gen_durable g
 WHERE g.id = u.id
   AND coalesce(g.status, 'runnable') IN ('done', 'failed')
   AND ($2::boolean OR (g.xmin = pg_current_xact_id()::xid AND g.updated_at = now()))
   AND g.has_inbox
   AND s.target_id = g.id
