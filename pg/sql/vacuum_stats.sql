-- How many dead rows gen_durable and signals carry, by the statistics collector, and whether we may vacuum them.
-- No parameters. Reads the catalogue only.
SELECT coalesce(sum(pg_stat_get_dead_tuples(c.oid)), 0)::bigint, coalesce(sum(pg_stat_get_live_tuples(c.oid)), 0)::bigint,
       coalesce(bool_and(pg_has_role(c.relowner, 'USAGE')), false)
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = 'public' AND c.relname IN ('gen_durable', 'signals') AND c.relkind = 'r'
