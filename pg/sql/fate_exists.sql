-- Tells a flusher whose attempt has committed from one whose row was collected.
-- $1 text name
SELECT count(*)::int FROM public.gen_durable_flushers f WHERE f.name = $1
