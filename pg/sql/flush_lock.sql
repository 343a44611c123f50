-- Locks all rows of a flush that are still owned, in descending id order, before the statements of its several kinds write them:
-- two multi-row writers that take rows in one order cannot deadlock. Descending, because a child has a higher id than its
-- parent, and the parent is written last.
-- $1 bigint[] ids, $2 text[] the worker of each
-- $3 int[] the number of the claim, null = any of the worker
-- Index: gen_durable_pkey, one probe a row.
SELECT count(*)::int
  FROM (SELECT g.id
          FROM unnest($1::bigint[], $2::text[], $3::int[]) AS u(id, worker, claim)
          JOIN public.gen_durable g ON g.id = u.id
         WHERE g.locked_by = coalesce(u.worker, ($2::text[])[1])
           AND (u.claim IS NULL OR g.claims = u.claim)
           AND coalesce(g.status, 'failed') = 'executing'
         ORDER BY g.id DESC
           FOR NO KEY UPDATE OF g) AS held
