-- Commits the outcomes Done and Stop: ends the rows. A row whose cancel was requested fails with that reason instead.
-- $1 bigint[] ids, ascending · $2 text[] worker · $3 boolean[] failed · $4 text[] result, JSON or null · $5 text[] error
-- Returns the ids that were still owned; and 1 for one that was cancelled, 0 otherwise. Guard and index as in flush_next.
UPDATE public.gen_durable g
   SET status = CASE WHEN u.failed OR g.cancel_requested IS NOT NULL THEN 'failed' ELSE 'done' END::public.durable_status,
       result = CASE WHEN g.cancel_requested IS NULL THEN u.result::jsonb END,
       last_error = coalesce(g.cancel_requested, u.error),
       awaits = NULL, concurrency_shard = NULL, locked_by = NULL, lease_expires_at = NULL,
       crashes = 0, crash_step = NULL, updated_at = now()
  FROM unnest($1::bigint[], $2::text[], $3::boolean[], $4::text[], $5::text[]) AS u(id, worker, failed, result, error)
 WHERE g.id = u.id
   AND g.locked_by = u.worker
   AND coalesce(g.status, 'failed') = 'executing'
RETURNING g.id, (g.cancel_requested IS NOT NULL)::int
