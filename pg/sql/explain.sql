-- Why an instance is not running: everything that decides about it, in one look.
-- $1 bigint id, 0 = by key · $2 text correlation key
-- Of what may be many, a bounded part is read: children and signals up to 1,000, rows ahead in the queue up to 1,000, the
-- shards of two limits. Nodes, limits and paused queues are small tables.
-- Returns no row when there is no such instance. Locks nothing. Indexes: gen_durable_pkey, gen_durable_correlation,
-- gen_durable_concurrency_active, gen_durable_parent, gen_durable_pick, signals_target, gen_durable_buckets_pkey.
-- Scalar subqueries and laterals under a LIMIT or an aggregate: each is a probe of its own, whatever the planner believes.
SELECT now(), g.id, g.fsm, g.fsm_version, g.step, g.status::text, g.queue, g.priority, g.attempt, g.eligible_at,
       coalesce(g.concurrency_key, ''), coalesce(g.rate_limit, ''), g.weight, g.awaits, g.await_deadline, g.children_pending,
       coalesce(g.locked_by, ''), g.lease_expires_at, g.cancel_requested, coalesce(g.last_error, ''), g.updated_at,
       (SELECT p.paused_at FROM public.gen_durable_queues p WHERE p.queue = g.queue),
       coalesce(held.id, 0), coalesce(held.locked_by, ''), held.updated_at,
       CASE WHEN g.status = 'runnable' AND g.correlation_key IS NOT NULL AND g.correlation_guard IS NULL
                 AND 'executing' = ANY (g.correlation_scope)
            THEN coalesce((SELECT o.id FROM public.gen_durable o WHERE o.correlation_guard = g.correlation_key LIMIT 1), 0)
            ELSE 0 END,
       gate.capacity, gate.shards, coalesce(slots.numbers, '{}'), coalesce(slots.capacities, '{}'), coalesce(slots.available, '{}'),
       rate.capacity, rate.shards, rate.rate, coalesce(tokens.numbers, '{}'), coalesce(tokens.available, '{}'), coalesce(tokens.ages, '{}'),
       coalesce(inbox.names, '{}'), coalesce(children.ids, '{}'),
       coalesce(nodes.runs, '{}'), coalesce(nodes.knows, '{}'), coalesce(nodes.steps, '{}'), coalesce(nodes.fits, '{}'), nodes.beat,
       coalesce(ahead.n, 0)
  FROM public.gen_durable g
  LEFT JOIN LATERAL (
       SELECT x.id, x.locked_by, x.updated_at FROM public.gen_durable x
        WHERE x.concurrency_key = g.concurrency_key AND x.concurrency_key IS NOT NULL
          AND x.status = 'executing' AND x.concurrency_shard IS NULL AND x.id <> g.id LIMIT 1) held ON g.status = 'runnable'
  LEFT JOIN LATERAL (
       SELECT floor(c.capacity) AS capacity, greatest(c.shards, 1)::int AS shards FROM public.gen_durable_bucket_configs c
        WHERE c.kind = 'conc' AND c.name = split_part(g.concurrency_key, ':', 1) LIMIT 1) gate ON g.status = 'runnable'
  LEFT JOIN LATERAL (
       SELECT array_agg(b.shard) AS numbers, array_agg(b.capacity) AS capacities, array_agg(b.available) AS available
         FROM public.gen_durable_buckets b WHERE b.kind = 'conc' AND b.key = g.concurrency_key) slots ON gate.shards IS NOT NULL
  LEFT JOIN LATERAL (
       SELECT c.capacity, greatest(c.shards, 1)::int AS shards, coalesce(c.rate, 0) AS rate FROM public.gen_durable_bucket_configs c
        WHERE c.kind = 'rate' AND c.name = split_part(g.rate_limit, ':', 1) LIMIT 1) rate ON g.status = 'runnable'
  LEFT JOIN LATERAL (
       SELECT array_agg(b.shard) AS numbers, array_agg(b.available) AS available,
              array_agg(greatest(extract(epoch FROM now() - coalesce(b.last_refill, now()))::float8, 0)) AS ages
         FROM public.gen_durable_buckets b WHERE b.kind = 'rate' AND b.key = g.rate_limit) tokens ON rate.shards IS NOT NULL
  LEFT JOIN LATERAL (
       SELECT array_agg(DISTINCT s.name) AS names
         FROM (SELECT i.name FROM public.signals i WHERE i.target_id = g.id LIMIT 1000) s) inbox ON g.status = 'awaiting_signal'
  LEFT JOIN LATERAL (
       SELECT array_agg(l.id) AS ids
         FROM (SELECT c.id
                 FROM (SELECT k.id, k.status FROM public.gen_durable k WHERE k.parent_id = g.id LIMIT 1000) c
                WHERE c.status NOT IN ('done', 'failed') LIMIT 10) l) children ON g.status = 'awaiting_children'
  LEFT JOIN LATERAL (
       SELECT array_agg(n.node) FILTER (WHERE n.serves) AS runs,
              array_agg(n.node) FILTER (WHERE n.serves AND n.machine) AS knows,
              array_agg(n.node) FILTER (WHERE n.serves AND n.machine AND n.step) AS steps,
              array_agg(n.node) FILTER (WHERE n.serves AND n.machine AND n.step AND NOT n.unfit) AS fits,
              max(n.beat) FILTER (WHERE n.owns) AS beat
         FROM (SELECT m.node, m.beat,
                      m.beat > now() - m.silent_after AND g.queue = ANY (m.queues) AS serves,
                      g.fsm || '/' || g.fsm_version = ANY (m.machines) AS machine,
                      m.steps = '{}' OR g.fsm || '/' || g.fsm_version || '/' || g.step = ANY (m.steps) AS step,
                      g.fsm || '/' || g.fsm_version || '/' || g.step = ANY (m.unfit) AS unfit,
                      m.incarnation = right(coalesce(g.locked_by, held.locked_by), 16) AS owns
                 FROM public.gen_durable_nodes m ORDER BY m.node) n) nodes ON g.status IN ('runnable', 'executing')
  LEFT JOIN LATERAL (
       SELECT count(*) FILTER (WHERE a.eligible_at <= now())::int AS n
         FROM (SELECT o.eligible_at FROM public.gen_durable o
                WHERE o.queue = g.queue AND o.status = 'runnable' AND (o.priority, o.eligible_at) < (g.priority, g.eligible_at)
                ORDER BY o.priority, o.eligible_at LIMIT 1000) a) ahead ON g.status = 'runnable' AND g.eligible_at <= now()
 WHERE g.id = CASE WHEN $1::bigint <> 0 THEN $1::bigint
                   ELSE (SELECT o.id FROM public.gen_durable o WHERE o.correlation_guard = $2::text) END
