-- New instances, some of them with a correlation key or a request id.
-- $1 text[] machine · $2 int[] version · $3 text[] step · $4 text[] state, JSON · $5 text[] queue · $6 smallint[] priority
-- $7 text[] concurrency key, '' = none · $8 text[] rate limit, '' = none · $9 float8[] weight
-- $10 timestamptz[] eligible at, or null · $11 bigint[] delay in µs, for when that is null
-- $12 boolean has_inbox and has_children
-- $13 text[] correlation key, '' = none · $14 smallint[] its scope: 0 none, 1 the live statuses, +1 done, +2 failed
-- $15 text[] request id, '' = none · $16 text the identity sequence of gen_durable
-- $17 text[] trace context, '' = none; null = none at all
-- Returns a row an entry, in no order: its position (from 1), the id if it was inserted, the first instance of a
-- repeated request id, the occupant of the key. The last two as the statement's snapshot knows them: what was committed
-- while it waited, or inserted by the statement itself, is null (see insert_found).
-- Locks: request ids in their order, then correlation keys in theirs (the database's collation, as the children's
-- insert and the original engine have it): what two batches wait for never makes a circle.
-- The ids are drawn first, so that the request can name its instance. The memberships are hashed subplans: a batch of
-- 60,000 against itself must not become a nested loop. The look-ups run only for entries that were not inserted.
-- Indexes: gen_durable_requests_pkey, gen_durable_correlation; writes the pick index and the pkeys.
WITH u AS MATERIALIZED (
    SELECT r.*, nextval($16::text::regclass) AS id
      FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::text[], $8::text[],
                  $9::float8[], $10::timestamptz[], $11::bigint[], $13::text[], $14::smallint[], $15::text[], $17::text[])
           WITH ORDINALITY
           AS r(fsm, version, step, state, queue, priority, concurrency_key, rate_limit, weight, eligible_at, delay,
                correlation_key, scope, request_id, trace, position)
), request AS (
    INSERT INTO public.gen_durable_requests AS q (id, instance_id)
    SELECT DISTINCT ON (u.request_id) u.request_id, u.id
      FROM u
     WHERE u.request_id <> ''
     ORDER BY u.request_id, u.position
    ON CONFLICT (id) DO NOTHING
    RETURNING q.instance_id
), fresh AS (
    INSERT INTO public.gen_durable AS g
           (id, fsm, fsm_version, step, state, queue, priority, concurrency_key, rate_limit, weight, eligible_at,
            correlation_key, correlation_scope, has_inbox, has_children, trace_context)
    OVERRIDING SYSTEM VALUE
    SELECT u.id, u.fsm, u.version, u.step, u.state::jsonb, u.queue, u.priority, nullif(u.concurrency_key, ''),
           nullif(u.rate_limit, ''), u.weight, coalesce(u.eligible_at, now() + u.delay * interval '1 microsecond'),
           nullif(u.correlation_key, ''),
           CASE u.scope
           WHEN 1 THEN '{runnable,executing,awaiting_signal,awaiting_children}'::public.durable_status[]
           WHEN 2 THEN '{runnable,executing,awaiting_signal,awaiting_children,done}'::public.durable_status[]
           WHEN 3 THEN '{runnable,executing,awaiting_signal,awaiting_children,failed}'::public.durable_status[]
           WHEN 4 THEN '{runnable,executing,awaiting_signal,awaiting_children,done,failed}'::public.durable_status[]
           ELSE '{}'::public.durable_status[] END,
           $12::boolean, $12::boolean, nullif(u.trace, '')
      FROM u
     WHERE u.request_id = '' OR u.id IN (SELECT request.instance_id FROM request)
     ORDER BY u.correlation_key, u.position
    ON CONFLICT (correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
    RETURNING g.id
)
SELECT e.position,
       CASE WHEN e.inserted THEN e.id END,
       CASE WHEN NOT e.inserted AND e.request_id <> ''
            THEN (SELECT q.instance_id FROM public.gen_durable_requests q WHERE q.id = e.request_id) END,
       CASE WHEN NOT e.inserted AND e.scope > 0
            THEN (SELECT o.id FROM public.gen_durable o WHERE o.correlation_guard = e.correlation_key) END
  FROM (SELECT u.position, u.id, u.request_id, u.correlation_key, u.scope,
               u.id IN (SELECT fresh.id FROM fresh) AS inserted
          FROM u) AS e
