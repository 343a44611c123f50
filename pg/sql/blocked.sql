-- Which of these rows somebody holds just now.
-- $1 bigint[] ids
-- Takes for an instant every lock that can be had. Index: gen_durable_pkey.
WITH free AS MATERIALIZED (
    SELECT g.id
      FROM unnest($1::bigint[]) AS u(id)
      JOIN public.gen_durable g ON g.id = u.id
     ORDER BY g.id
       FOR NO KEY UPDATE OF g SKIP LOCKED
)
SELECT g.id FROM unnest($1::bigint[]) AS u(id) JOIN public.gen_durable g ON g.id = u.id
EXCEPT
SELECT f.id FROM free f
