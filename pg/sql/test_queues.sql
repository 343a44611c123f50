-- The queues that have rows which a claim could take now, the most urgent first. Of the test helper.
-- Locks nothing. Index: gen_durable_pick, read whole.
SELECT g.queue
  FROM public.gen_durable g
 WHERE g.status = 'runnable' AND g.eligible_at <= now()
 GROUP BY g.queue
 ORDER BY min(g.priority), min(g.eligible_at), g.queue
