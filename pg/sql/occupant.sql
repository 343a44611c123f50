-- Who occupies the correlation key that an instance had.
-- $1 bigint id
-- Locks nothing. Indexes: gen_durable_pkey, gen_durable_correlation.
SELECT g.correlation_key, coalesce((SELECT o.id FROM public.gen_durable o WHERE o.correlation_guard = g.correlation_key), 0)
  FROM public.gen_durable g
 WHERE g.id = $1 AND g.correlation_key IS NOT NULL
