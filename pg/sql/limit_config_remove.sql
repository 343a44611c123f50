-- Forgets limits.
-- $1 text[] kinds · $2 text[] names
-- Locks: limits by kind and name, waits. Index: gen_durable_bucket_configs_pkey.
WITH doomed AS MATERIALIZED (
    SELECT c.kind, c.name
      FROM unnest($1::text[], $2::text[]) AS u(kind, name)
      JOIN public.gen_durable_bucket_configs c ON c.kind = u.kind AND c.name = u.name
     ORDER BY c.kind, c.name
       FOR UPDATE OF c
)
DELETE FROM public.gen_durable_bucket_configs c
 USING doomed d
 WHERE c.kind = d.kind AND c.name = d.name
