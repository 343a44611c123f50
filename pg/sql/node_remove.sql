-- A node leaves: its row goes, unless another incarnation has taken it, or rows still carry this one's claim.
-- $1 text engine · $2 text node · $3 text incarnation
-- Locks: the row. Indexes: gen_durable_nodes_pkey; gen_durable_lease for what is executing, which is read whole.
DELETE FROM public.gen_durable_nodes n
 WHERE n.engine = $1 AND n.node = $2 AND n.incarnation = $3
   AND NOT EXISTS (SELECT FROM public.gen_durable g
                    WHERE g.status = 'executing' AND right(g.locked_by, 17) = '-' || $3::text)
