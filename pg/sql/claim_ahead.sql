-- In how many µs the next row of a queue becomes eligible, of those that are scheduled for later; null = none is, up to a horizon.
-- $1 text queue · $2 bigint horizon in µs
-- Sent before a claim in one pipeline, when a scheduler looks of its own accord; judged by the same time as that claim.
-- Locks nothing. Index: gen_durable_pick, two probes a priority.
WITH RECURSIVE lane(priority) AS (
    SELECT (SELECT g.priority FROM public.gen_durable g WHERE g.queue = $1 AND g.status = 'runnable' ORDER BY g.priority LIMIT 1)
    UNION ALL
    SELECT (SELECT g.priority FROM public.gen_durable g
             WHERE g.queue = $1 AND g.status = 'runnable' AND g.priority > l.priority ORDER BY g.priority LIMIT 1)
      FROM lane l
     WHERE l.priority IS NOT NULL
)
SELECT (extract(epoch FROM min((SELECT g.eligible_at
                                  FROM public.gen_durable g
                                 WHERE g.queue = $1
                                   AND g.status = 'runnable'
                                   AND g.priority = l.priority
                                   AND g.eligible_at > now()
                                   AND g.eligible_at <= now() + $2::bigint * interval '1 microsecond'
                                 ORDER BY g.eligible_at
                                 LIMIT 1)) - now()) * 1000000)::bigint
  FROM lane l
 WHERE l.priority IS NOT NULL
