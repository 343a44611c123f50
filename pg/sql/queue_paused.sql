-- The queues that are paused, and since when, by name.
-- Locks nothing. Index: gen_durable_queues_pkey; there are as many rows as queues are paused.
SELECT q.queue, q.paused_at FROM public.gen_durable_queues q ORDER BY q.queue
