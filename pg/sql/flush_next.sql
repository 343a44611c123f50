-- Commits the outcomes Next.
-- $1 bigint[] ids, descending · $2 text[] worker · $3 text[] step · $4 text[] state, JSON · $5 bigint[] delay in µs
-- $6 text[] rate limit or null · $7 float8[] weight · $8 smallint[] key change: 0 keep, 1 release, 2 set · $9 text[] new key
-- Columns that are the same for all rows may be shorter: a missing worker is the first one, a missing limit or key none.
-- $10 int[] the number of the claim, null = any of the worker
-- Returns the ids that were still owned; queue of those that are eligible at once.
-- The guard hides the status from the planner: matched with the lease index, whose statistics nearly always say "no
-- executing rows", it would be joined batch by batch. Index: gen_durable_pkey, driven by unnest.
UPDATE public.gen_durable g
   SET status = 'runnable', step = u.step, state = u.state::jsonb, attempt = 0, awaits = NULL,
       eligible_at = now() + u.delay * interval '1 microsecond',
       rate_limit = u.rate_limit, weight = u.weight,
       concurrency_key = CASE u.key WHEN 0 THEN g.concurrency_key WHEN 2 THEN u.new_key END,
       concurrency_shard = NULL, locked_by = NULL, lease_expires_at = NULL, last_error = NULL,
       crashes = 0, crash_step = NULL, updated_at = now()
  FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::float8[], $8::smallint[],
              $9::text[], $10::int[]) AS u(id, worker, step, state, delay, rate_limit, weight, key, new_key, claim)
 WHERE g.id = u.id
   AND g.locked_by = coalesce(u.worker, ($2::text[])[1])
   AND (u.claim IS NULL OR g.claims = u.claim)
   AND coalesce(g.status, 'failed') = 'executing'
   AND g.cancel_requested IS NULL
RETURNING g.id, CASE WHEN u.delay = 0 THEN g.queue END
