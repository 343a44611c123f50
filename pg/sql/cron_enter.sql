-- Enters periodic insertions that are new, as of now, and says where all of them stand.
-- $1 text[] names
-- Returns name, last occurrence and the time on the database's clock. One that somebody else enters just now may be missing.
-- Locks: the rows of new names, in order. Index: gen_durable_cron_pkey.
WITH fresh AS (
    INSERT INTO public.gen_durable_cron AS c (name)
    SELECT u.name FROM unnest($1::text[]) AS u(name)
     WHERE NOT EXISTS (SELECT FROM public.gen_durable_cron k WHERE k.name = u.name)
     ORDER BY u.name
    ON CONFLICT (name) DO NOTHING
    RETURNING c.name, c.last
)
SELECT f.name, f.last, now() FROM fresh f
UNION ALL
SELECT c.name, c.last, now() FROM public.gen_durable_cron c WHERE c.name = ANY ($1::text[])
