-- Whether what a joint commit has written was written by the top transaction. Inside a savepoint that somebody left open it
-- was not: then the statements that follow an outcome have found no row of this transaction's and done nothing.
-- $1 bigint id
-- Locks nothing. Index: gen_durable_pkey.
SELECT g.xmin = pg_current_xact_id()::xid FROM public.gen_durable g WHERE g.id = $1
