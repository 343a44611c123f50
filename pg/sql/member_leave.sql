-- A member leaves the cluster; its node's row stays.
-- $1 text engine · $2 text node · $3 text incarnation
-- Locks: the node's own row. Index: gen_durable_nodes_pkey.
UPDATE public.gen_durable_nodes n
   SET member = '', member_beat = NULL, lanes = '{}', seats = '{}'
 WHERE n.engine = $1 AND n.node = $2 AND n.incarnation = $3
