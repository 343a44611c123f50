-- One instance as operators see it: by id, or by the correlation key it occupies.
-- $1 bigint id, 0 = by key · $2 text key
-- Locks nothing. Indexes: gen_durable_pkey, gen_durable_correlation, one probe each at most.
SELECT g.id, g.fsm, g.fsm_version, g.step, g.status::text, g.state, g.result, coalesce(g.last_error, ''), g.queue,
       g.priority, g.attempt, g.crashes, g.awaits, g.await_deadline, g.eligible_at, coalesce(g.concurrency_key, ''),
       coalesce(g.rate_limit, ''), g.weight, coalesce(g.correlation_key, ''), g.correlation_scope::text[],
       coalesce(g.parent_id, 0), g.children_pending, coalesce(g.locked_by, ''), g.lease_expires_at,
       g.cancel_requested, g.inserted_at, g.updated_at
  FROM public.gen_durable g
 WHERE g.id = CASE WHEN $1::bigint <> 0 THEN $1::bigint
                   ELSE (SELECT o.id FROM public.gen_durable o WHERE o.correlation_guard = $2::text) END
