-- Claims an occurrence of a periodic insertion, by advancing the time of its last one, and inserts its instance. Whoever
-- comes second finds it advanced.
-- $1 text name · $2 timestamptz the occurrence
-- $3 text machine · $4 int version · $5 text step · $6 text state, JSON · $7 text queue · $8 smallint priority
-- $9 text concurrency key, '' = none · $10 text rate limit, '' = none · $11 float8 weight
-- $12 bigint delay in µs · $13 boolean has_inbox and has_children
-- $14 text correlation key, '' = none · $15 smallint its scope, as in insert_keyed
-- Returns whether the occurrence was claimed, and the instance, null when its correlation key is occupied: then the
-- occurrence is passed over. One that lies in the future of the database's clock is not claimed.
-- Locks: the row of the name; then an entry of the correlation index. Index: gen_durable_cron_pkey.
WITH fired AS (
    UPDATE public.gen_durable_cron c
       SET last = $2
     WHERE c.name = $1 AND c.last < $2 AND $2 <= now()
    RETURNING c.name
), fresh AS (
    INSERT INTO public.gen_durable AS g
           (fsm, fsm_version, step, state, queue, priority, concurrency_key, rate_limit, weight, eligible_at,
            has_inbox, has_children, correlation_key, correlation_scope)
    SELECT $3, $4, $5, $6::text::jsonb, $7, $8, nullif($9::text, ''), nullif($10::text, ''), $11,
           now() + $12::bigint * interval '1 microsecond', $13, $13, nullif($14::text, ''),
           CASE $15::smallint
           WHEN 1 THEN '{runnable,executing,awaiting_signal,awaiting_children}'::public.durable_status[]
           WHEN 2 THEN '{runnable,executing,awaiting_signal,awaiting_children,done}'::public.durable_status[]
           WHEN 3 THEN '{runnable,executing,awaiting_signal,awaiting_children,failed}'::public.durable_status[]
           WHEN 4 THEN '{runnable,executing,awaiting_signal,awaiting_children,done,failed}'::public.durable_status[]
           ELSE '{}'::public.durable_status[] END
      FROM fired
    ON CONFLICT (correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
    RETURNING g.id
)
SELECT EXISTS (SELECT FROM fired), (SELECT f.id FROM fresh f)
