-- Commits the outcomes Next of rows that go on in the same task: they stay executing, under the same claim and lease.
-- $1 bigint[] ids, descending · $2 text[] worker · $3 text[] step · $4 text[] state, JSON
-- $5 smallint[] key change: 0 keep, 1 release, 2 set · $6 int[] the number of the claim, null = any of the worker
-- $7 bigint[] target, $8 bigint[] signal: what the steps were handed, to be deleted
-- $9 text[] new key · $10 text[] rate limit or null · $11 float8[] weight; arrays may be shorter: no key, no limit, weight 1
-- A kept key keeps its slot. A new one must be a gate's: the row gets the shard -1, as from a claim, so that it stays out of the
-- index of the keys that are taken and can meet nobody there; whether it may run on is for the limiter to say after the commit.
-- Writes no indexed column (neither the lease nor eligible_at nor updated_at) unless a key changes, so that the update
-- is HOT: no index entry is made, and no vacuum needed to get rid of it. The heartbeat extends the lease.
-- Since updated_at stays, the riders' proof (see flush_inbox) would not do here. The signals are deleted in this very
-- statement instead, and only for rows that its own update returned: a hashed subplan, because a join without hash joins
-- would be the product of both.
-- Returns the ids that were still owned; whether they may have signals and children, as of the row under its lock; the queue
-- of those whose key changed.
-- Guard and index as in flush_next; signals_pkey.
WITH continued AS (
    UPDATE public.gen_durable g
       SET step = u.step, state = u.state::jsonb, attempt = 0, awaits = NULL, rate_limit = u.rate_limit, weight = coalesce(u.weight, 1),
           concurrency_key = CASE u.key WHEN 0 THEN g.concurrency_key WHEN 2 THEN u.new_key END,
           concurrency_shard = CASE u.key WHEN 0 THEN g.concurrency_shard WHEN 2 THEN -1 END,
           last_error = NULL, crashes = 0, crash_step = NULL
      FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::int[], $9::text[], $10::text[], $11::float8[])
           AS u(id, worker, step, state, key, claim, new_key, rate_limit, weight)
     WHERE g.id = u.id
       AND g.locked_by = coalesce(u.worker, ($2::text[])[1])
       AND (u.claim IS NULL OR g.claims = u.claim)
       AND coalesce(g.status, 'failed') = 'executing'
       AND g.cancel_requested IS NULL
    RETURNING g.id, g.has_inbox, g.has_children, CASE WHEN u.key <> 0 THEN g.queue END AS queue
), consumed AS (
    DELETE FROM public.signals s
     USING unnest($7::bigint[], $8::bigint[]) AS h(target, id)
     WHERE s.id = h.id AND (s.target_id = h.target) IS TRUE
       AND (h.target IN (SELECT c.id FROM continued c)) IS TRUE
)
SELECT c.id, c.has_inbox, c.has_children, c.queue FROM continued c
