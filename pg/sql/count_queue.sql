-- How many instances of a queue stand where, each number up to a bound, so that the cost is one of the bound and not of
-- the table: each walks a partial index of just those rows, and stops.
-- $1 text queue · $2 bigint the bound
-- Executing rows are few, and have no index by queue: what a fleet runs is walked up to the bound.
-- Returns ready, scheduled for later, executing, awaiting a signal, awaiting children, failed; since when the queue is paused;
-- and the earliest eligible_at of ready ones, which a queue has one look for each of its first 100 priorities.
-- Parked ones are counted in no order, failed ones in that of their index by a range of one queue: with anything that another
-- index offers as well, the planner would walk that of all terminal rows, or the primary key.
-- Locks nothing. Indexes: gen_durable_pick, gen_durable_lease, gen_durable_parked, gen_durable_failed, gen_durable_queues_pkey.
WITH RECURSIVE level AS (
    (SELECT g.priority, 1 AS n FROM public.gen_durable g
      WHERE g.queue = $1 AND g.status = 'runnable' ORDER BY g.queue, g.priority, g.eligible_at LIMIT 1)
    UNION ALL
    SELECT (SELECT g.priority FROM public.gen_durable g
             WHERE g.queue = $1 AND g.status = 'runnable' AND g.priority > l.priority
             ORDER BY g.queue, g.priority, g.eligible_at LIMIT 1), l.n + 1
      FROM level l
     WHERE l.priority IS NOT NULL AND l.n < 100
)
SELECT (SELECT count(*) FROM (SELECT FROM public.gen_durable g WHERE g.queue = $1 AND g.status = 'runnable' AND g.eligible_at <= now()
                               ORDER BY g.queue, g.priority, g.eligible_at LIMIT $2) AS c),
       (SELECT count(*) FILTER (WHERE c.eligible_at > now())
          FROM (SELECT g.eligible_at FROM public.gen_durable g WHERE g.queue = $1 AND g.status = 'runnable'
                 ORDER BY g.queue, g.priority, g.eligible_at LIMIT $2) AS c),
       (SELECT count(*) FILTER (WHERE c.queue = $1)
          FROM (SELECT g.queue FROM public.gen_durable g WHERE g.status = 'executing' ORDER BY g.lease_expires_at LIMIT $2) AS c),
       (SELECT count(*) FROM (SELECT FROM public.gen_durable g WHERE g.queue = $1 AND g.status = 'awaiting_signal' LIMIT $2) AS c),
       (SELECT count(*) FROM (SELECT FROM public.gen_durable g WHERE g.queue = $1 AND g.status = 'awaiting_children' LIMIT $2) AS c),
       (SELECT count(*) FROM (SELECT FROM public.gen_durable g WHERE g.queue >= $1 AND g.queue <= $1 AND g.status = 'failed'
                               ORDER BY g.queue, g.id LIMIT $2) AS c),
       (SELECT q.paused_at FROM public.gen_durable_queues q WHERE q.queue = $1),
       (SELECT min(e.eligible_at)
          FROM level l
         CROSS JOIN LATERAL (SELECT g.eligible_at FROM public.gen_durable g
                              WHERE g.queue = $1 AND g.status = 'runnable' AND g.priority = l.priority
                              ORDER BY g.queue, g.priority, g.eligible_at LIMIT 1) AS e
         WHERE l.priority IS NOT NULL AND e.eligible_at <= now())
