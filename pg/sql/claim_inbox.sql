-- The inboxes of claimed rows: of each the first 1,000 and one that says there are more, awaited ones before the others
-- when there are more, oldest first.
-- $1 bigint[] ids · $2 text[] the awaited names of each as the text form of a text[], or null · $3 bigint how many
-- Locks nothing. Index: signals_target, one probe a row.
SELECT u.id, s.trace_context, s.id, s.name, s.payload, s.inserted_at
  FROM unnest($1::bigint[], $2::text[]) AS u(id, awaits)
 CROSS JOIN LATERAL (
       SELECT s.trace_context, s.id, s.name, s.payload, s.inserted_at
         FROM public.signals s
        WHERE s.target_id = u.id
        ORDER BY coalesce(s.name = ANY (u.awaits::text[]), false) DESC, s.id
        LIMIT $3) AS s
