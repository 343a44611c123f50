-- Which instance an id or an occupied correlation key names, and its queue.
-- $1 bigint id, 0 = by key · $2 text key
-- Returns no row when there is none. Locks nothing. Indexes: gen_durable_pkey, gen_durable_correlation.
SELECT g.id, g.queue
  FROM public.gen_durable g
 WHERE g.id = CASE WHEN $1::bigint <> 0 THEN $1::bigint
                   ELSE (SELECT o.id FROM public.gen_durable o WHERE o.correlation_guard = $2::text) END
