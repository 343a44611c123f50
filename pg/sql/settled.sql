-- Where instances stand, for those who wait for them.
-- $1 bigint[] ids
-- Locks nothing. Index: gen_durable_pkey, one probe an id.
SELECT g.id, g.status::text, CASE WHEN g.status = 'done' THEN g.result END,
       CASE WHEN g.status = 'failed' THEN coalesce(g.last_error, '') ELSE '' END,
       CASE WHEN g.status = 'awaiting_signal' THEN g.awaits END
  FROM public.gen_durable g
 WHERE g.id = ANY ($1::bigint[])
