-- The records of an instance, oldest first.
-- $1 bigint instance · $2 bigint the record after which to begin, 0 = the first · $3 bigint how many
-- Locks nothing. Index: gen_durable_history_pkey.
SELECT h.id, h.at, h.step, h.attempt, h.outcome, coalesce(h.next_step, ''), h.status::text, coalesce(h.error, ''),
       coalesce(h.worker, ''), coalesce(h.took, 0)
  FROM public.gen_durable_history h
 WHERE h.instance_id = $1::bigint AND h.id > $2::bigint
 ORDER BY h.id
 LIMIT $3::bigint
