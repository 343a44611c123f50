-- Notes where the traces of instances go on. A rider of the outcomes whose steps were traced.
-- $1 bigint[] ids · $2 text[] trace context
-- Only where this transaction wrote the row, proved as in flush_inbox; it runs before the join, which writes rows that
-- made no progress. No indexed column is written, so the update is HOT; it makes a second version of the row, which is the
-- price of tracing, and keeps the column out of the statements that run without it.
-- Index: gen_durable_pkey, driven by unnest.
UPDATE public.gen_durable g
   SET trace_context = u.trace
  FROM unnest($1::bigint[], $2::text[]) AS u(id, trace)
 WHERE g.id = u.id
   AND g.xmin = pg_current_xact_id()::xid AND g.updated_at = now()
