-- Moves time on: to the next moment at which a runnable row becomes eligible or an await times out, but no further than
-- asked for. As nobody can move the database's clock, the times of all live rows, of their signals and of the rate limits'
-- buckets move back instead. Of the test helper.
-- $1 bigint how far at most, in µs
-- Returns how far it went in µs, and whether something is due now that was not before.
-- Locks: all live rows, their signals and the rate limits' shards, in no order. Reads the tables whole.
WITH next AS (
    SELECT min(e.due) AS due
      FROM (SELECT g.eligible_at AS due FROM public.gen_durable g WHERE g.status = 'runnable' AND g.eligible_at > now()
             UNION ALL
            SELECT g.await_deadline FROM public.gen_durable g WHERE g.status = 'awaiting_signal' AND g.await_deadline > now()) AS e
), hop AS MATERIALIZED (
    SELECT least(n.due - now(), $1::bigint * interval '1 microsecond') AS by,
           coalesce(n.due - now() <= $1::bigint * interval '1 microsecond', false) AS met
      FROM next n
), rows AS (
    UPDATE public.gen_durable g
       SET eligible_at = g.eligible_at - h.by, await_deadline = g.await_deadline - h.by,
           inserted_at = g.inserted_at - h.by, updated_at = g.updated_at - h.by
      FROM hop h
     WHERE g.status NOT IN ('done', 'failed')
), inboxes AS (
    UPDATE public.signals s SET inserted_at = s.inserted_at - h.by FROM hop h
), refills AS (
    UPDATE public.gen_durable_buckets b SET last_refill = b.last_refill - h.by FROM hop h WHERE b.kind = 'rate'
)
SELECT (extract(epoch FROM h.by) * 1000000)::bigint, h.met FROM hop h
