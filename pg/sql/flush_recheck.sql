-- Wakes the rows that this transaction has just parked although an awaited signal is there already. A rider.
-- $1 bigint[] ids · $2 text[] per row the ids of the signals its step was handed, as the text form of a bigint[], or null
-- A statement after the park, because only its snapshot sees a signal that was committed while the park waited for the
-- row; a delivery after that waits for the park and wakes the row itself. That a row was parked here is proved as in
-- flush_inbox. What was handed is a set taken off by id, not a watermark: ids commit out of order.
-- The difference is an EXCEPT so that a pack of 100,000 costs n and not n².
-- One probe a name, kept apart by the OFFSET: with name = ANY, newer planners read the whole inbox by another index.
-- A row of the original engine whose correlation key is occupied in the status runnable stays parked; its deadline is now,
-- so that the sweep wakes it once the key is free.
-- Returns ids, and the queue of those that were woken. Indexes: gen_durable_pkey, signals_target.
UPDATE public.gen_durable g
   SET (status, await_deadline) =
       (SELECT CASE WHEN k.shut THEN g.status ELSE 'runnable' END, CASE WHEN k.shut THEN now() END
          FROM (SELECT CASE WHEN g.correlation_guard IS NULL AND 'runnable' = ANY (g.correlation_scope)
                            THEN (SELECT 1 FROM public.gen_durable o WHERE o.correlation_guard = g.correlation_key LIMIT 1) IS NOT NULL
                            ELSE false END AS shut) AS k),
       eligible_at = now(), updated_at = now()
  FROM unnest($1::bigint[], $2::text[]) AS u(id, handed)
 WHERE g.id = u.id
   AND coalesce(g.status, 'failed') = 'awaiting_signal'
   AND g.xmin = pg_current_xact_id()::xid AND g.updated_at = now()
   AND g.has_inbox
   AND CASE WHEN u.handed IS NULL THEN
            (SELECT 1 FROM unnest(g.awaits) AS w(name), LATERAL
                   (SELECT s.id FROM public.signals s WHERE s.target_id = g.id AND s.name = w.name OFFSET 0) AS s LIMIT 1) IS NOT NULL
       ELSE (SELECT 1 FROM (SELECT s.id FROM unnest(g.awaits) AS w(name), LATERAL
                                   (SELECT s.id FROM public.signals s WHERE s.target_id = g.id AND s.name = w.name OFFSET 0) AS s
                            EXCEPT SELECT unnest(u.handed::bigint[])) AS fresh LIMIT 1) IS NOT NULL
       END
RETURNING g.id, CASE WHEN g.status = 'runnable' THEN g.queue END
