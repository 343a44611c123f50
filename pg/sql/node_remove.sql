-- A node leaves: its row goes, unless another incarnation has taken it.
-- $1 text engine · $2 text node · $3 text incarnation
-- Locks: the row. Index: gen_durable_nodes_pkey.
DELETE FROM public.gen_durable_nodes n WHERE n.engine = $1 AND n.node = $2 AND n.incarnation = $3
