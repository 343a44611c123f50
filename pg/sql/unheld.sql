-- The rows that carry a worker's name without the worker knowing of them: claims whose answer was lost.
-- $1 text worker · $2 bigint[] the ids it holds
-- Locks nothing; release gives them back. Index: gen_durable_lease, all executing rows (rare: only after a lost answer).
-- Returns their ids and the numbers of their claims. A hashed subplan, because not every host allows hash joins.
SELECT g.id, g.claims FROM public.gen_durable g
 WHERE g.status = 'executing' AND g.locked_by = $1
   AND g.id NOT IN (SELECT h.id FROM unnest($2::bigint[]) AS h(id))
