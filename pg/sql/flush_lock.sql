-- Locks all rows of a flush that are still owned, and the parents it will tell, in descending id order, before its statements
-- write them: two multi-row writers that take rows in one order cannot deadlock. Descending, because a child has a higher id
-- than its parent. Sent only when the statements would not keep that order by themselves: rows of several kinds, or a
-- parent with a higher id than one of the rows.
-- $1 bigint[] ids, $2 text[] the worker of each
-- $3 int[] the number of the claim, null = any of the worker · $4 bigint[] parents
-- Index: gen_durable_pkey, one probe a row.
SELECT count(*)::int
  FROM (SELECT g.id
          FROM (SELECT u.id, coalesce(u.worker, ($2::text[])[1]) AS worker, u.claim
                  FROM unnest($1::bigint[], $2::text[], $3::int[]) AS u(id, worker, claim)
                 UNION ALL
                SELECT p.id, NULL, NULL FROM unnest($4::bigint[]) AS p(id)) AS u
          JOIN public.gen_durable g ON g.id = u.id
         WHERE u.worker IS NULL
            OR (g.locked_by = u.worker
                AND (u.claim IS NULL OR g.claims = u.claim)
                AND coalesce(g.status, 'failed') = 'executing')
         ORDER BY g.id DESC
           FOR NO KEY UPDATE OF g) AS held
