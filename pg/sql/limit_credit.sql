-- Gives back slots of gates.
-- $1 text[] keys · $2 smallint[] shards · $3 bigint[] ids of the transactions that ended their holders' execution
-- A slot whose holder had ended when the shard was last counted is free already. Never above the shard's part of the
-- limit, nor above what it was given: holders beyond a lowered limit leave nothing behind.
-- Returns how many slots were freed or found free. Locks: shards by key and number, waits for them.
-- Index: gen_durable_buckets_pkey, gen_durable_bucket_configs_pkey.
WITH freed AS MATERIALIZED (
    SELECT u.key, u.shard, array_agg(u.mark::text::xid8) AS marks
      FROM unnest($1::text[], $2::smallint[], $3::bigint[]) AS u(key, shard, mark)
     GROUP BY u.key, u.shard
), locked AS MATERIALIZED (
    SELECT b.key, b.shard, f.marks,
           (SELECT CASE WHEN b.shard < greatest(c.shards, 1) THEN floor(floor(c.capacity) / greatest(c.shards, 1))
                 + CASE WHEN b.shard < floor(c.capacity) - greatest(c.shards, 1) * floor(floor(c.capacity) / greatest(c.shards, 1))
                        THEN 1 ELSE 0 END ELSE 0 END
              FROM public.gen_durable_bucket_configs c
             WHERE c.kind = 'conc' AND c.name = split_part(b.key, ':', 1)) AS share
      FROM freed f
      JOIN public.gen_durable_buckets b ON b.kind = 'conc' AND b.key = f.key AND b.shard = f.shard
     ORDER BY b.key, b.shard
       FOR UPDATE OF b
), credited AS (
    UPDATE public.gen_durable_buckets b
       SET (capacity, available) = (
               SELECT greatest(least(coalesce(l.share, b.capacity), b.capacity), h.held),
                      greatest(least(coalesce(l.share, b.capacity), b.capacity), h.held) - h.held
                 FROM (SELECT greatest(b.capacity - b.available
                                       - (SELECT count(*) FROM unnest(l.marks) AS m(mark)
                                           WHERE b.counted IS NULL OR NOT pg_visible_in_snapshot(m.mark, b.counted)), 0) AS held) h)
      FROM locked l
     WHERE b.kind = 'conc' AND b.key = l.key AND b.shard = l.shard
    RETURNING cardinality(l.marks) AS n
)
SELECT coalesce(sum(c.n), 0)::int FROM credited c
