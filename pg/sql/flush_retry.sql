-- Commits the outcomes Retry: the same step again, its awaits, limit and key kept.
-- $1 bigint[] ids, descending · $2 text[] worker · $3 text[] state, JSON, null keeps it · $4 bigint[] delay in µs
-- $5 boolean[] counted · $6 text[] last_error, null keeps it
-- $7 int[] the number of the claim, null = any of the worker
-- Returns the ids that were still owned; queue of those that are eligible at once. Guard and index as in flush_next.
UPDATE public.gen_durable g
   SET status = 'runnable', state = coalesce(u.state::jsonb, g.state),
       attempt = CASE WHEN u.counted AND g.attempt < 2147483647 THEN g.attempt + 1 ELSE g.attempt END,
       eligible_at = now() + u.delay * interval '1 microsecond',
       last_error = coalesce(u.error, g.last_error),
       concurrency_shard = NULL, locked_by = NULL, lease_expires_at = NULL,
       crashes = 0, crash_step = NULL, updated_at = now()
  FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::boolean[], $6::text[], $7::int[])
       AS u(id, worker, state, delay, counted, error, claim)
 WHERE g.id = u.id
   AND g.locked_by = coalesce(u.worker, ($2::text[])[1])
   AND (u.claim IS NULL OR g.claims = u.claim)
   AND coalesce(g.status, 'failed') = 'executing'
   AND g.cancel_requested IS NULL
RETURNING g.id, CASE WHEN u.delay = 0 THEN g.queue END
