-- The queues of those rows that are runnable now.
-- $1 bigint[] ids
-- Locks nothing. Index: gen_durable_pkey.
SELECT coalesce(array_agg(DISTINCT g.queue), '{}')
  FROM unnest($1::bigint[]) AS u(id)
  JOIN public.gen_durable g ON g.id = u.id
 WHERE coalesce(g.status, 'failed') = 'runnable'
