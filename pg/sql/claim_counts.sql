-- How many children claimed rows have, by status.
-- $1 bigint[] ids
-- Locks nothing. Index: gen_durable_parent, one probe a row.
SELECT u.id, c.status::text, count(*)
  FROM unnest($1::bigint[]) AS u(id)
  JOIN public.gen_durable c ON c.parent_id = u.id
 GROUP BY u.id, c.status
