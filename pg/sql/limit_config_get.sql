-- All limits, by kind and name. A small table, read whole. No locks.
SELECT c.kind, c.name, c.rate, c.capacity, c.shards FROM public.gen_durable_bucket_configs c ORDER BY c.kind, c.name
