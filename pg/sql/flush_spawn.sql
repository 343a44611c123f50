-- Inserts the children of the parents that this transaction has just parked (proved as in flush_inbox), and gives each
-- parent the number that was really inserted; a parent without any is runnable at once. A rider of flush_children.
-- $1 bigint[] the parents · $2 boolean has_inbox and has_children of new rows
-- per child: $3 bigint[] parent · $4 text[] machine · $5 int[] version · $6 text[] step · $7 text[] state, JSON
-- $8 text[] queue · $9 smallint[] priority · $10 text[] concurrency key · $11 text[] rate limit · $12 float8[] weight
-- $13 text[] correlation key · $14 text[] its scope as the text form of an array · $15 timestamptz[] eligible at, or
-- null · $16 bigint[] delay in µs, for when that is null · $17 text[] trace context, '' = none; null = none at all
-- Inserted in the order of the keys, so that two batches with the same new keys cannot deadlock, then of the arrays.
-- The parents' rows are this transaction's own versions: no other writer can get between the CTEs. What a parent waits
-- for already (children of a round that a retried parent has left behind) stays counted.
-- Parents and children meet in a hashed subplan (IS TRUE keeps it from becoming a join, which without hash joins is a
-- nested loop) and in one aggregate: 500 parents with 100 children each must cost their sum, not their product.
-- Returns one row a parent: id, number, whether it is runnable now, its queue; and one row (id 0) a queue of children.
-- Indexes: gen_durable_pkey; inserts into pick, parent and correlation.
WITH parent AS MATERIALIZED (
    SELECT g.id
      FROM unnest($1::bigint[]) AS u(id)
      JOIN public.gen_durable g ON g.id = u.id
     WHERE coalesce(g.status, 'failed') = 'awaiting_children'
       AND g.xmin = pg_current_xact_id()::xid AND g.updated_at = now()
), child AS (
    INSERT INTO public.gen_durable AS n
           (parent_id, fsm, fsm_version, step, state, queue, priority, concurrency_key, rate_limit, weight,
            correlation_key, correlation_scope, eligible_at, has_inbox, has_children, trace_context)
    SELECT c.parent, c.fsm, c.version, c.step, c.state::jsonb, c.queue, c.priority, c.concurrency_key, c.rate_limit,
           c.weight, c.correlation_key, c.scope::public.durable_status[],
           coalesce(c.eligible_at, now() + c.delay * interval '1 microsecond'), $2::boolean, $2::boolean, nullif(c.trace, '')
      FROM unnest($3::bigint[], $4::text[], $5::int[], $6::text[], $7::text[], $8::text[], $9::smallint[], $10::text[],
                  $11::text[], $12::float8[], $13::text[], $14::text[], $15::timestamptz[], $16::bigint[], $17::text[])
           WITH ORDINALITY AS c(parent, fsm, version, step, state, queue, priority, concurrency_key, rate_limit, weight,
                                correlation_key, scope, eligible_at, delay, trace, position)
     WHERE (c.parent IN (SELECT p.id FROM parent p)) IS TRUE
     ORDER BY c.correlation_key, c.position
    ON CONFLICT (correlation_guard) WHERE correlation_guard IS NOT NULL DO NOTHING
    RETURNING n.parent_id, n.queue, n.eligible_at
), counted AS (
    SELECT k.id, sum(k.n)::int AS n
      FROM (SELECT p.id, 0 AS n FROM parent p UNION ALL SELECT c.parent_id, 1 FROM child c) AS k
     GROUP BY k.id
), parked AS (
    UPDATE public.gen_durable g
       SET children_pending = g.children_pending + k.n,
           status = CASE WHEN g.children_pending + k.n = 0 THEN 'runnable' ELSE g.status END,
           eligible_at = CASE WHEN g.children_pending + k.n = 0 THEN now() ELSE g.eligible_at END
      FROM counted k
     WHERE g.id = k.id
    RETURNING g.id, k.n, g.status, g.queue
)
SELECT p.id, p.n, p.status = 'runnable', p.queue FROM parked p
UNION ALL
SELECT DISTINCT 0::bigint, 0, true, c.queue FROM child c WHERE c.eligible_at <= now()
