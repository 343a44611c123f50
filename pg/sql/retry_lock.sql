-- Locks an instance that is to be retried: a child before its parent, as everywhere.
-- $1 bigint id
-- Locks: the row. Index: gen_durable_pkey.
SELECT g.id FROM public.gen_durable g WHERE g.id = $1 FOR NO KEY UPDATE
