-- Pauses a queue: no claim that begins after the commit takes a row of it.
-- $1 text queue
-- Returns since when it is paused. A queue that is paused already stays as it is.
-- Locks: the queue's row. Index: gen_durable_queues_pkey.
INSERT INTO public.gen_durable_queues AS q (queue) VALUES ($1)
ON CONFLICT (queue) DO UPDATE SET paused_at = q.paused_at
RETURNING q.paused_at
