-- Whether what is written now is written by the top transaction, and not inside a savepoint. Of the test helper.
-- $1 text name of a flusher
-- Locks: the flusher's row. Index: gen_durable_flushers_pkey.
INSERT INTO public.gen_durable_flushers AS f (name) VALUES ($1)
ON CONFLICT (name) DO UPDATE SET beat = now()
RETURNING f.xmin = pg_current_xact_id()::xid
