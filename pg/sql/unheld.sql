-- The rows that carry a worker's name without the worker knowing of them: claims whose answer was lost.
-- $1 text worker · $2 bigint[] the ids it holds
-- Locks nothing; release gives them back. Index: gen_durable_lease, all executing rows (rare: only after a lost answer).
SELECT g.id FROM public.gen_durable g WHERE g.status = 'executing' AND g.locked_by = $1
EXCEPT
SELECT unnest($2::bigint[])
