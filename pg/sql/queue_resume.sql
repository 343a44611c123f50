-- Lets a queue go on.
-- $1 text queue
-- Locks: the queue's row. Index: gen_durable_queues_pkey.
DELETE FROM public.gen_durable_queues q WHERE q.queue = $1
