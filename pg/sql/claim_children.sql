-- The children of claimed rows: of each the first 1,000 in id order and one that says there are more.
-- $1 bigint[] ids · $2 bigint how many
-- Locks nothing. Index: gen_durable_parent, one probe a row.
SELECT u.id, c.trace_context, c.id, c.fsm, c.status::text, coalesce(c.correlation_key, ''), c.state, c.result, coalesce(c.last_error, '')
  FROM unnest($1::bigint[]) AS u(id)
 CROSS JOIN LATERAL (
       SELECT c.trace_context, c.id, c.fsm, c.status, c.correlation_key, c.state, c.result, c.last_error
         FROM public.gen_durable c
        WHERE c.parent_id = u.id
        ORDER BY c.id
        LIMIT $2) AS c
