-- Who holds the request ids and correlation keys that an insert met, for those its own snapshot did not know.
-- $1 text[] request id, '' = none · $2 text[] correlation key, '' = none
-- Returns a row an entry, in order: the instance of the request, the occupant of the key; null = none.
-- Locks nothing. Indexes: gen_durable_requests_pkey, gen_durable_correlation, one probe each.
SELECT (SELECT q.instance_id FROM public.gen_durable_requests q WHERE q.id = u.request_id),
       (SELECT o.id FROM public.gen_durable o WHERE o.correlation_guard = u.correlation_key)
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u(request_id, correlation_key, position)
 ORDER BY u.position
