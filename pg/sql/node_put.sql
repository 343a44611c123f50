-- Puts a node's row in the place of its predecessor's.
-- $1 text engine · $2 text node · $3 text incarnation · $4 boolean named · $5 text address · $6 text[] queues
-- $7 text[] machines · $8 text[] steps · $9 text[] unfit steps · $10 bigint how long its silence means nothing, in µs
-- Locks: the row. Index: gen_durable_nodes_pkey.
INSERT INTO public.gen_durable_nodes (engine, node, incarnation, named, address, queues, machines, steps, unfit, silent_after)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::bigint * interval '1 microsecond')
ON CONFLICT (engine, node) DO UPDATE
   SET incarnation = excluded.incarnation, named = excluded.named, address = excluded.address,
       queues = excluded.queues, machines = excluded.machines, steps = excluded.steps,
       unfit = excluded.unfit, silent_after = excluded.silent_after, started_at = now(), beat = now()
