-- The incarnation that a node's row carries, locked until we have put ours there.
-- $1 text engine · $2 text node
-- Locks: the row. Index: gen_durable_nodes_pkey.
SELECT n.incarnation FROM public.gen_durable_nodes n WHERE n.engine = $1 AND n.node = $2 FOR UPDATE
