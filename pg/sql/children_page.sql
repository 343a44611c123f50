-- Children with an id above a given one, in id order.
-- $1 bigint parent · $2 bigint after · $3 bigint how many
-- Locks nothing. Index: gen_durable_parent.
SELECT c.id, c.fsm, c.status::text, coalesce(c.correlation_key, ''), c.state, c.result, coalesce(c.last_error, '')
  FROM public.gen_durable c
 WHERE c.parent_id = $1 AND c.id > $2
 ORDER BY c.id
 LIMIT $3
