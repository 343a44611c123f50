-- Commits the first half of the outcomes ScheduleChildren: parks the parents. flush_spawn must follow in the same
-- transaction. The lock on each parent is held from here to the commit, so that nothing takes it in between.
-- $1 bigint[] ids, descending · $2 text[] worker · $3 text[] step · $4 text[] state, JSON
-- $5 int[] the number of the claim, null = any of the worker
-- Returns the ids that were still owned. Guard and index as in flush_next.
UPDATE public.gen_durable g
   SET status = 'awaiting_children', step = u.step, state = u.state::jsonb, attempt = 0, awaits = NULL,
       rate_limit = NULL, weight = 1, concurrency_shard = NULL, locked_by = NULL, lease_expires_at = NULL,
       last_error = NULL, crashes = 0, crash_step = NULL, has_children = true, updated_at = now()
  FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::int[]) AS u(id, worker, step, state, claim)
 WHERE g.id = u.id
   AND g.locked_by = coalesce(u.worker, ($2::text[])[1])
   AND (u.claim IS NULL OR g.claims = u.claim)
   AND coalesce(g.status, 'failed') = 'executing'
   AND g.cancel_requested IS NULL
RETURNING g.id
