-- The children of an instance that a cascading cancel has to visit: those that live, and those that may have children.
-- $1 bigint parent
-- Locks nothing. Index: gen_durable_parent.
SELECT c.id
  FROM public.gen_durable c
 WHERE c.parent_id = $1
   AND (c.status NOT IN ('done', 'failed') OR c.has_children)
 ORDER BY c.id
