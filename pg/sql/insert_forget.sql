-- Forgets the request ids of this transaction whose insert fell to an occupied correlation key: a repeat is judged
-- anew. Behind insert_keyed in its pipeline, when an entry has both.
-- $1 text[] request ids
-- Locks: own rows only. Indexes: gen_durable_requests_pkey, gen_durable_pkey.
DELETE FROM public.gen_durable_requests q
 WHERE q.id = ANY ($1::text[])
   AND q.inserted_at = now()
   AND NOT EXISTS (SELECT FROM public.gen_durable g WHERE g.id = q.instance_id)
