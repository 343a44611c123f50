-- The queues that have live or failed instances, by name, at most so many: one look at an index for each.
-- $1 bigint how many at most
-- Executing rows have no index by queue, so a queue of nothing else is missing.
-- Locks nothing. Indexes: gen_durable_pick, gen_durable_parked, gen_durable_failed.
WITH RECURSIVE name AS (
    SELECT least((SELECT g.queue FROM public.gen_durable g WHERE g.status = 'runnable' ORDER BY g.queue, g.priority, g.eligible_at LIMIT 1),
                 (SELECT g.queue FROM public.gen_durable g WHERE g.status IN ('awaiting_signal', 'awaiting_children')
                   ORDER BY g.queue, g.status, g.id LIMIT 1),
                 (SELECT g.queue FROM public.gen_durable g WHERE g.status = 'failed' ORDER BY g.queue, g.id LIMIT 1)) AS queue, 1 AS n
    UNION ALL
    SELECT least((SELECT g.queue FROM public.gen_durable g WHERE g.status = 'runnable' AND g.queue > l.queue
                   ORDER BY g.queue, g.priority, g.eligible_at LIMIT 1),
                 (SELECT g.queue FROM public.gen_durable g WHERE g.status IN ('awaiting_signal', 'awaiting_children') AND g.queue > l.queue
                   ORDER BY g.queue, g.status, g.id LIMIT 1),
                 (SELECT g.queue FROM public.gen_durable g WHERE g.status = 'failed' AND g.queue > l.queue
                   ORDER BY g.queue, g.id LIMIT 1)), l.n + 1
      FROM name l
     WHERE l.queue IS NOT NULL AND l.n < $1::bigint
)
SELECT l.queue FROM name l WHERE l.queue IS NOT NULL
