-- Delivers one signal: what signal does, for the common case, at a third of its cost.
-- $1 bigint id, 0 = by key · $2 text key, '' = by id · $3 text name · $4 text payload, JSON · $5 text dedup key, '' = none
-- $6 text trace context, '' = none
-- Returns a row unless the target was refused: the target, the signal (null = the dedup key was accepted before), the
-- queue, and whether the target was woken. A target by id that has ended since it accepted the dedup key is not refused: whoever
-- repeats the signal, because the answer was lost, learns that it was accepted; there is no queue then.
-- A row of the original engine that would enter its correlation scope by the wake while its key is occupied stays parked;
-- its deadline is now, so that the sweep wakes it once the key is free.
-- Locks: the target first; everything else happens under that lock. See signal for why.
-- Indexes: gen_durable_pkey, gen_durable_correlation, gen_durable_dedup_pkey; writes signals' three.
WITH held AS MATERIALIZED (
    SELECT g.id, g.queue, g.has_inbox, CASE WHEN g.status = 'awaiting_signal' THEN g.awaits END AS awaits,
           CASE WHEN g.correlation_guard IS NULL AND 'runnable' = ANY (g.correlation_scope)
                THEN (SELECT 1 FROM public.gen_durable o WHERE o.correlation_guard = g.correlation_key LIMIT 1) IS NOT NULL
                ELSE false END AS shut
      FROM public.gen_durable g
     WHERE g.id = CASE WHEN $2::text = '' THEN $1::bigint
                       ELSE (SELECT o.id FROM public.gen_durable o WHERE o.correlation_guard = $2::text) END
       AND g.status NOT IN ('done', 'failed')
       AND ($2::text = '' OR g.correlation_guard = $2::text)
       FOR NO KEY UPDATE OF g
), remembered AS (
    INSERT INTO public.gen_durable_dedup (target_id, dedup_key)
    SELECT h.id, $5::text FROM held h WHERE $5::text <> ''
    ON CONFLICT (target_id, dedup_key) DO NOTHING
    RETURNING 1
), stored AS (
    INSERT INTO public.signals AS s (target_id, name, payload, dedup_key, trace_context)
    SELECT h.id, $3::text, $4::text::jsonb, nullif($5::text, ''), nullif($6::text, '')
      FROM held h
     WHERE $5::text = '' OR EXISTS (SELECT FROM remembered)
    ON CONFLICT DO NOTHING
    RETURNING s.id
), woken AS (
    UPDATE public.gen_durable g
       SET has_inbox = true,
           status = CASE WHEN g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits) AND NOT h.shut
                         THEN 'runnable' ELSE g.status END,
           eligible_at = CASE WHEN g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits)
                              THEN now() ELSE g.eligible_at END,
           await_deadline = CASE WHEN g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits)
                                 THEN CASE WHEN h.shut THEN now() END ELSE g.await_deadline END,
           updated_at = CASE WHEN g.status = 'awaiting_signal' AND $3::text = ANY (g.awaits)
                             THEN now() ELSE g.updated_at END
      FROM held h
     WHERE g.id = h.id
       AND (NOT h.has_inbox OR $3::text = ANY (h.awaits))
       AND EXISTS (SELECT FROM stored)
    RETURNING g.status
)
SELECT h.id, (SELECT s.id FROM stored s), h.queue,
       h.awaits IS NOT NULL AND coalesce((SELECT w.status = 'runnable' FROM woken w), false)
  FROM held h
UNION ALL
SELECT d.target_id, NULL, '', false
  FROM public.gen_durable_dedup d
 WHERE $2::text = '' AND $5::text <> '' AND d.target_id = $1::bigint AND d.dedup_key = $5::text
   AND NOT EXISTS (SELECT FROM held)
