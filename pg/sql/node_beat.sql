-- A node says that it lives, unless another incarnation has taken its row. A row that was deleted comes back.
-- Parameters as in node_put.
-- Returns the incarnation the row carries, ours or the successor's.
-- Locks: the row. Index: gen_durable_nodes_pkey.
WITH beaten AS (
    INSERT INTO public.gen_durable_nodes AS n (engine, node, incarnation, named, address, queues, machines, steps, unfit, silent_after)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10::bigint * interval '1 microsecond')
    ON CONFLICT (engine, node) DO UPDATE
       SET beat = now(), address = excluded.address, queues = excluded.queues, machines = excluded.machines,
           steps = excluded.steps, unfit = excluded.unfit, silent_after = excluded.silent_after
     WHERE n.incarnation = excluded.incarnation
    RETURNING n.incarnation
)
SELECT coalesce((SELECT b.incarnation FROM beaten b),
                (SELECT n.incarnation FROM public.gen_durable_nodes n WHERE n.engine = $1 AND n.node = $2), '')
