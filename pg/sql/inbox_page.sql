-- The next signals of an inbox that were not handed over yet: the names the instance parked on before the others, then
-- oldest first, as the claim hands them over.
-- $1 bigint target · $2 bigint[] handed · $3 bigint how many
-- The handed ones are a hashed subplan, probed once a signal. Payloads are fetched for the page only.
-- Locks nothing. Indexes: signals_target, signals_pkey, gen_durable_pkey.
SELECT s.id, s.name, s.payload, s.inserted_at
  FROM (SELECT i.id,
               coalesce(i.name = ANY ((SELECT g.awaits FROM public.gen_durable g WHERE g.id = $1)::text[]), false) AS awaited
          FROM public.signals i
         WHERE i.target_id = $1
           AND i.id NOT IN (SELECT h.id FROM unnest($2::bigint[]) AS h(id) WHERE h.id IS NOT NULL)
         ORDER BY awaited DESC, i.id
         LIMIT $3) AS page
  JOIN public.signals s ON s.id = page.id
 ORDER BY page.awaited DESC, s.id
