-- Commits the outcomes Done and Stop: ends the rows. A row whose cancel was requested fails with that reason instead.
-- $1 bigint[] ids, descending · $2 text[] worker · $3 boolean[] failed · $4 text[] result, JSON or null · $5 text[] error
-- $6 boolean[] the inbox is known of: flush_inbox follows for this row
-- $7 int[] the number of the claim, null = any of the worker
-- Returns the ids that were still owned; 1 for one that was cancelled, else 0; and a column without meaning, which notes
-- the rows that turn out to have an inbox nobody knew of (the first signal came during the last step) in a setting that
-- lives as long as this transaction. flush_inbox_late reads it. That spares every row without an inbox a second probe.
-- Guard and index as in flush_next.
UPDATE public.gen_durable g
   SET status = CASE WHEN u.failed OR g.cancel_requested IS NOT NULL THEN 'failed' ELSE 'done' END::public.durable_status,
       result = CASE WHEN g.cancel_requested IS NULL THEN u.result::jsonb END,
       last_error = coalesce('cancelled: ' || g.cancel_requested, u.error),
       awaits = NULL, concurrency_shard = NULL, locked_by = NULL, lease_expires_at = NULL,
       crashes = 0, crash_step = NULL, updated_at = now()
  FROM unnest($1::bigint[], $2::text[], $3::boolean[], $4::text[], $5::text[], $6::boolean[], $7::int[])
       AS u(id, worker, failed, result, error, known, claim)
 WHERE g.id = u.id
   AND g.locked_by = coalesce(u.worker, ($2::text[])[1])
   AND (u.claim IS NULL OR g.claims = u.claim)
   AND coalesce(g.status, 'failed') = 'executing'
RETURNING g.id, (g.cancel_requested IS NOT NULL)::int,
          CASE WHEN g.has_inbox AND u.known IS NOT TRUE
               THEN set_config('gendurable.late_inboxes',
                               coalesce(current_setting('gendurable.late_inboxes', true), '') || g.id || ',', true) IS NULL
          END
