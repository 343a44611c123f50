package system

// The floor's statements: what a durable queue on these tables has to write, and nothing else. They work on the tables
// of gendurable, so that floor and engine differ in the engine only, and are as lean as they can be: no keys, no
// cancel requests, no limits, no fence, no count of claims; the guard and the lease are there, because without them it
// would not be a durable queue.

// floorClaim: $1 worker · $2 limit · $3 the lower bound of eligible_at, which spares the dead entries before it.
const floorClaim = `
UPDATE gen_durable g
   SET status = 'executing', locked_by = $1, lease_expires_at = now() + interval '60 s', updated_at = now()
 WHERE g.id = ANY (ARRAY(
       SELECT c.id FROM gen_durable c
        WHERE c.queue = 'default' AND c.status = 'runnable' AND c.priority = 0
          AND c.eligible_at >= $3::timestamptz AND c.eligible_at <= now()
        ORDER BY c.priority, c.eligible_at LIMIT $2
          FOR NO KEY UPDATE SKIP LOCKED))
RETURNING g.id, g.step, g.state, g.eligible_at, g.parent_id`

// floorInbox reads what woke the claimed. $1 ids
const floorInbox = `SELECT s.target_id, s.id, s.payload FROM signals s WHERE s.target_id = ANY ($1::bigint[])`

// floorDone ends rows. $1 ids · $2 results · $3 worker
const floorDone = `
UPDATE gen_durable g
   SET status = 'done', result = u.result::jsonb, locked_by = NULL, lease_expires_at = NULL, updated_at = now()
  FROM unnest($1::bigint[], $2::text[]) AS u(id, result)
 WHERE g.id = u.id AND g.locked_by = $3 AND coalesce(g.status, 'failed') = 'executing'`

// floorNext requeues rows for their next step. $1 ids · $2 steps · $3 states · $4 worker
const floorNext = `
UPDATE gen_durable g
   SET status = 'runnable', step = u.step, state = u.state::jsonb, eligible_at = now(),
       locked_by = NULL, lease_expires_at = NULL, updated_at = now()
  FROM unnest($1::bigint[], $2::text[], $3::text[]) AS u(id, step, state)
 WHERE g.id = u.id AND g.locked_by = $4 AND coalesce(g.status, 'failed') = 'executing'`

// floorContinue commits steps of rows that their worker keeps: nothing that an index holds is written. $1 ids ·
// $2 steps · $3 states · $4 worker
const floorContinue = `
UPDATE gen_durable g
   SET step = u.step, state = u.state::jsonb, attempt = 0
  FROM unnest($1::bigint[], $2::text[], $3::text[]) AS u(id, step, state)
 WHERE g.id = u.id AND g.locked_by = $4 AND coalesce(g.status, 'failed') = 'executing'`

// floorPark parks rows for the signal "go", unless it is there already. $1 ids · $2 states · $3 worker
const floorPark = `
UPDATE gen_durable g
   SET status = CASE WHEN EXISTS (SELECT FROM signals s WHERE s.target_id = g.id AND s.name = 'go')
                     THEN 'runnable' ELSE 'awaiting_signal' END::durable_status,
       step = 'woken', state = u.state::jsonb, awaits = '{go}', locked_by = NULL, lease_expires_at = NULL,
       updated_at = now()
  FROM unnest($1::bigint[], $2::text[]) AS u(id, state)
 WHERE g.id = u.id AND g.locked_by = $3 AND coalesce(g.status, 'failed') = 'executing'`

// floorConsume deletes consumed signals. $1 ids
const floorConsume = `DELETE FROM signals s WHERE s.id = ANY ($1::bigint[])`

// floorSignal stores a signal and wakes its target. $1 target · $2 payload
const floorSignal = `
WITH stored AS (INSERT INTO signals (target_id, name, payload) VALUES ($1, 'go', $2))
UPDATE gen_durable g SET status = 'runnable', eligible_at = now(), updated_at = now()
 WHERE g.id = $1 AND g.status = 'awaiting_signal'`

// floorSignals does so for many. $1 targets · $2 payload
const floorSignals = `
WITH held AS MATERIALIZED (SELECT g.id FROM gen_durable g WHERE g.id = ANY ($1::bigint[]) ORDER BY g.id FOR NO KEY UPDATE),
     stored AS (INSERT INTO signals (target_id, name, payload) SELECT h.id, 'go', $2 FROM held h)
UPDATE gen_durable g SET status = 'runnable', eligible_at = now(), updated_at = now()
 WHERE g.id = ANY (ARRAY(SELECT h.id FROM held h)) AND coalesce(g.status, 'failed') = 'awaiting_signal'`

// floorSpawn parks a parent and inserts its children. $1 parent · $2 worker · $3 number of children · $4 their state
const floorSpawn = `
WITH parent AS (
    UPDATE gen_durable g
       SET status = 'awaiting_children', step = 'joined', children_pending = $3, locked_by = NULL,
           lease_expires_at = NULL, updated_at = now()
     WHERE g.id = $1 AND g.locked_by = $2 AND coalesce(g.status, 'failed') = 'executing'
    RETURNING g.id)
INSERT INTO gen_durable (fsm, step, state, parent_id, has_inbox, has_children)
SELECT 'floor', 'child', $4, p.id, false, false FROM parent p, generate_series(1, $3)`

// floorJoin counts down a parent. $1 parent · $2 ended children
const floorJoin = `
UPDATE gen_durable p
   SET children_pending = p.children_pending - $2,
       status = CASE WHEN p.children_pending <= $2 THEN 'runnable' ELSE p.status END,
       eligible_at = CASE WHEN p.children_pending <= $2 THEN now() ELSE p.eligible_at END
 WHERE p.id = $1`

// floorInsert: $1 step · $2 state
const floorInsert = `
INSERT INTO gen_durable (fsm, step, state, has_inbox, has_children) VALUES ('floor', $1, $2, false, false) RETURNING id`

// floorInsertMany: $1 steps · $2 states
const floorInsertMany = `
INSERT INTO gen_durable (fsm, step, state, has_inbox, has_children)
SELECT 'floor', u.step, u.state, false, false FROM unnest($1::text[], $2::jsonb[]) AS u(step, state) RETURNING id`

// floorCollect deletes what ended before an age. $1 seconds · $2 limit
const floorCollect = `
DELETE FROM gen_durable g WHERE g.id = ANY (ARRAY(
       SELECT c.id FROM gen_durable c WHERE c.status IN ('done', 'failed') AND c.updated_at < now() - $1 * interval '1 s'
        ORDER BY c.updated_at LIMIT $2 FOR UPDATE SKIP LOCKED))`

// floorSession is what a session that runs only these statements is set to: one plan a statement, index probes.
var floorSession = map[string]string{
	"plan_cache_mode": "force_generic_plan", "jit": "off", "enable_hashjoin": "off", "enable_mergejoin": "off",
	"enable_seqscan": "off",
}
