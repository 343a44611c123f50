-- Stores limits; one that is stored as it is already is not written.
-- $1 text[] kinds · $2 text[] names · $3 float8[] tokens a second, null of a gate · $4 float8[] burst or limit · $5 smallint[] shards
-- Locks: limits by kind and name, waits. Index: gen_durable_bucket_configs_pkey.
INSERT INTO public.gen_durable_bucket_configs AS c (kind, name, rate, capacity, shards)
SELECT u.kind, u.name, u.rate, u.capacity, u.shards
  FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::smallint[]) AS u(kind, name, rate, capacity, shards)
 ORDER BY u.kind, u.name
ON CONFLICT (kind, name) DO UPDATE
   SET rate = EXCLUDED.rate, capacity = EXCLUDED.capacity, shards = EXCLUDED.shards
 WHERE (c.rate, c.capacity, c.shards) IS DISTINCT FROM (EXCLUDED.rate, EXCLUDED.capacity, EXCLUDED.shards)
