-- Tells who owns rows now. Of refused outcomes: of those still owned a cancel was requested, the others are stale.
-- $1 bigint[] ids, $2 text[] worker
-- Returns the ids still owned, the owner, the number of its claim, the reason of the cancel, if any, the queue, and whether
-- the row may have signals and children. Locks nothing. Index: gen_durable_pkey.
SELECT g.id, g.locked_by, g.claims, g.cancel_requested, g.queue, g.has_inbox, g.has_children
  FROM unnest($1::bigint[], $2::text[]) AS u(id, worker)
  JOIN public.gen_durable g ON g.id = u.id
 WHERE g.locked_by = coalesce(u.worker, ($2::text[])[1])
   AND coalesce(g.status, 'failed') = 'executing'
