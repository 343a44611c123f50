-- New instances without correlation keys and request ids, in the order of the arrays.
-- $1 text[] machine · $2 int[] version · $3 text[] step · $4 text[] state, JSON · $5 text[] queue · $6 smallint[] priority
-- $7 text[] concurrency key, '' = none · $8 text[] rate limit, '' = none · $9 float8[] weight
-- $10 timestamptz[] eligible at, or null · $11 bigint[] delay in µs, for when that is null
-- $12 boolean has_inbox and has_children · $13 text[] trace context, '' = none; null = none at all
-- Returns the ids in the order of the arrays: the scan of unnest keeps it, and so does INSERT.
-- Locks nothing but what it inserts. Writes gen_durable_pkey and gen_durable_pick.
INSERT INTO public.gen_durable
       (fsm, fsm_version, step, state, queue, priority, concurrency_key, rate_limit, weight, eligible_at,
        has_inbox, has_children, trace_context)
SELECT u.fsm, u.version, u.step, u.state::jsonb, u.queue, u.priority, nullif(u.concurrency_key, ''), nullif(u.rate_limit, ''),
       u.weight, coalesce(u.eligible_at, now() + u.delay * interval '1 microsecond'), $12::boolean, $12::boolean, nullif(u.trace, '')
  FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::text[], $8::text[],
              $9::float8[], $10::timestamptz[], $11::bigint[], $13::text[])
       AS u(fsm, version, step, state, queue, priority, concurrency_key, rate_limit, weight, eligible_at, delay, trace)
RETURNING id
