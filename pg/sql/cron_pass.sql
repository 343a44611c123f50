-- Passes over the occurrences of a periodic insertion up to one.
-- $1 text name · $2 timestamptz the occurrence
-- Locks: the row of the name. Index: gen_durable_cron_pkey.
UPDATE public.gen_durable_cron c
   SET last = $2
 WHERE c.name = $1 AND c.last < $2 AND $2 <= now()
