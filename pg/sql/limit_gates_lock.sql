-- Takes the shards of a page of gates' keys, for limit_gates_heal in the same transaction.
-- $1 text the key after which the page begins · $2 bigint how many keys
-- Returns each key of the page with a null, in order, and each shard that is locked now.
-- Locks: shards by key and number, with SKIP LOCKED. Index: gen_durable_buckets_pkey.
WITH page AS MATERIALIZED (
    SELECT DISTINCT b.key FROM public.gen_durable_buckets b WHERE b.kind = 'conc' AND b.key > $1 ORDER BY b.key LIMIT $2
), locked AS MATERIALIZED (
    SELECT b.key, b.shard
      FROM page p
      JOIN public.gen_durable_buckets b ON b.kind = 'conc' AND b.key = p.key
     ORDER BY b.key, b.shard
       FOR UPDATE OF b SKIP LOCKED
)
SELECT p.key, NULL::smallint AS shard FROM page p
UNION ALL
SELECT l.key, l.shard FROM locked l
