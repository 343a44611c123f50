-- Notes in its history that an instance was ended by a cancel. A rider of cancel.
-- $1 bigint id · $2 text[] the machines that keep a history, as far as this process knows · $3 boolean proven: as in
-- flush_inbox
-- An instance that has a history already gets the row too, whoever cancels it. One that executes is not ended here but by
-- its worker's flush. Indexes: gen_durable_pkey, gen_durable_history_pkey.
INSERT INTO public.gen_durable_history (instance_id, step, attempt, outcome, status, error)
SELECT g.id, g.step, g.attempt, 'cancelled', g.status, g.last_error
  FROM public.gen_durable g
 WHERE g.id = $1::bigint
   AND coalesce(g.status, 'runnable') = 'failed'
   AND ($3::boolean OR (g.xmin = pg_current_xact_id()::xid AND g.updated_at = now()))
   AND (g.fsm = ANY ($2::text[])
        OR (SELECT 1 FROM public.gen_durable_history h WHERE h.instance_id = g.id LIMIT 1) IS NOT NULL)
