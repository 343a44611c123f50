-- One new instance without correlation key and request id.
-- $1 text machine · $2 int version · $3 text step · $4 text state, JSON · $5 text queue · $6 smallint priority
-- $7 text concurrency key, '' = none · $8 text rate limit, '' = none · $9 float8 weight
-- $10 timestamptz eligible at, or null · $11 bigint delay in µs, for when that is null
-- $12 boolean has_inbox and has_children · $13 text trace context, '' = none
-- Returns the id. Locks nothing but what it inserts. Writes gen_durable_pkey and gen_durable_pick.
INSERT INTO public.gen_durable
       (fsm, fsm_version, step, state, queue, priority, concurrency_key, rate_limit, weight, eligible_at,
        has_inbox, has_children, trace_context)
VALUES ($1, $2, $3, $4::text::jsonb, $5, $6, nullif($7::text, ''), nullif($8::text, ''), $9,
        coalesce($10::timestamptz, now() + $11::bigint * interval '1 microsecond'), $12, $12, nullif($13::text, ''))
RETURNING id
