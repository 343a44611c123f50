package gendurable_test

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// check is a query for violations: a row is one.
type check struct{ name, sql string }

// mixedViews say what the checks have in common.
const mixedViews = `
ANALYZE mixed_runs, mixed_effects, mixed_taken, mixed_inserted, mixed_sent, mixed_ops, gen_durable, gen_durable_history;
-- What an operator let run again begins anew: at a step that it was at before, at a time of its own.
CREATE VIEW mixed_retried AS SELECT instance, count(*) AS times FROM mixed_ops WHERE op = 'retry' GROUP BY instance;
CREATE VIEW mixed_progress AS SELECT * FROM gen_durable_history WHERE outcome IN ('next', 'await', 'children');
-- Runs whose step ran again although it had come to a good end, in a process that was not killed.
CREATE VIEW mixed_repeated AS
SELECT r.* FROM mixed_runs r
 WHERE r.process <> 'a1' AND r.outcome = 'ok'
   AND EXISTS (SELECT FROM mixed_runs l WHERE l.instance = r.instance AND l.seq = r.seq AND l.id > r.id)
   AND r.instance NOT IN (SELECT instance FROM mixed_retried);`

var mixedAtRest = []check{
	{"no row executes, or is held", `
		SELECT id, status, locked_by, lease_expires_at, concurrency_shard FROM gen_durable
		 WHERE status = 'executing' OR locked_by IS NOT NULL OR lease_expires_at IS NOT NULL OR concurrency_shard IS NOT NULL`},
	{"no slot is taken", `SELECT * FROM gen_durable_buckets WHERE kind = 'conc' AND available <> capacity`},
	{"the shards of a key make up its limit", fmt.Sprintf(`
		SELECT kind, key, sum(capacity) FROM gen_durable_buckets GROUP BY kind, key
		HAVING sum(capacity) <> CASE kind WHEN 'conc' THEN %d ELSE %d END OR count(*) <> 2`, mixedGate, mixedBurst)},
	{"no signal is left", `SELECT * FROM signals`},
	{"no queue is paused", `SELECT * FROM gen_durable_queues`},
}

var mixedInvariants = []check{
	{"I1 every inserted instance reached its end", `
		SELECT i.instance, g.status FROM mixed_inserted i LEFT JOIN gen_durable g ON g.id = i.instance
		 WHERE g.id IS NULL OR g.status NOT IN ('done', 'failed')`},
	{"I1 every child reached its end", `SELECT id, fsm, step, status FROM gen_durable WHERE status NOT IN ('done', 'failed')`},
	{"I2 a step starts when exactly the transitions before it are committed, so none again that is", `
		SELECT * FROM mixed_runs WHERE committed <> seq`},
	{"I2 a claim runs a step once", `
		SELECT instance, seq, claim, count(*) FROM mixed_runs GROUP BY instance, seq, claim HAVING count(*) > 1`},
	{"I2 what ran again had failed, or been killed, or was retried by the operator", `SELECT * FROM mixed_repeated`},
	{"I2 each attempt has a higher number", `
		SELECT r.* FROM (SELECT *, lag(attempt) OVER w AS before FROM mixed_runs WINDOW w AS (PARTITION BY instance, seq ORDER BY id)) r
		 WHERE r.attempt <= r.before AND r.instance NOT IN (SELECT instance FROM mixed_retried)`},
	{"I3 a step runs in the process that has the row", `
		SELECT * FROM mixed_runs WHERE status <> 'executing' OR worker IS NULL OR worker NOT LIKE '%@mixed-' || left(process, 1) || '-%'`},
	{"I3 an outcome is that of a run of the worker who held the row", `
		SELECT * FROM gen_durable_history h
		 WHERE h.outcome NOT IN ('cancelled', 'retried')
		   -- A job without an attempt left (each claim of a killed process counts as one) is stopped without a run.
		   AND NOT (h.outcome = 'stop' AND h.attempt >= 3)
		   AND NOT EXISTS (SELECT FROM mixed_runs r
		                    WHERE r.instance = h.instance_id AND r.step = h.step AND r.attempt = h.attempt AND r.worker = h.worker
		                      AND r.outcome = CASE WHEN h.outcome IN ('retry', 'stop') THEN 'error' ELSE 'ok' END)`},
	{"I3 a step has one committed outcome", `
		SELECT g.id, g.state, count(p.id) FROM gen_durable g LEFT JOIN mixed_progress p ON p.instance_id = g.id
		 WHERE g.fsm <> 'mixed-job' GROUP BY g.id HAVING count(p.id) <> (g.state ->> 'seq')::int`},
	{"I3 an instance ends once, and once more for each time that it was retried", `
		SELECT g.id, g.fsm, g.status, g.last_error, e.ends, coalesce(r.times, 0)
		  FROM gen_durable g
		  LEFT JOIN (SELECT instance_id, count(*) AS ends FROM gen_durable_history
		              WHERE outcome IN ('done', 'stop', 'cancelled') GROUP BY instance_id) e ON e.instance_id = g.id
		  LEFT JOIN mixed_retried r ON r.instance = g.id
		 WHERE e.ends IS DISTINCT FROM 1 + coalesce(r.times, 0)`},
	{"a retry leaves one record", `
		SELECT * FROM (SELECT instance_id AS instance, count(*) AS records FROM gen_durable_history WHERE outcome = 'retried' GROUP BY 1) h
		  FULL JOIN mixed_retried r USING (instance)
		 WHERE h.records IS DISTINCT FROM r.times`},
	{"I4, I5 no key has more runs at once than it may", fmt.Sprintf(`
		SELECT * FROM (SELECT key, at, sum(d) OVER (PARTITION BY key ORDER BY at, d) AS inside
		                 FROM (SELECT key, began AS at, 1 AS d FROM mixed_runs WHERE key IS NOT NULL AND ended IS NOT NULL
		                       UNION ALL
		                       SELECT key, ended, -1 FROM mixed_runs WHERE key IS NOT NULL AND ended IS NOT NULL) e) i
		 WHERE inside > CASE WHEN key LIKE 'g:%%' THEN %d ELSE 1 END`, mixedGate)},
	{"I5 who runs with a gate's key has a slot", `SELECT * FROM mixed_runs WHERE gated <> coalesce(key LIKE 'g:%', false)`},
	// A token is taken between claim and begin. So what was claimed after one moment and began before another took its tokens between.
	{"I6 no time saw more tokens taken than the burst and what came in it", fmt.Sprintf(`
		SELECT * FROM (SELECT a.rate, a.claimed AS since, b.began AS until,
		                      sum(b.weight) OVER (PARTITION BY a.id ORDER BY b.began, b.id) AS tokens
		                 FROM mixed_runs a JOIN mixed_runs b ON b.rate = a.rate AND b.claimed >= a.claimed) w
		 WHERE tokens > %d + %d * extract(epoch FROM until - since) + 0.001`, mixedBurst, mixedRate)},
	{"I7 a signal is taken once", `SELECT instance, n, count(*) FROM mixed_taken GROUP BY instance, n HAVING count(*) > 1`},
	{"I7 a dedup key counts once", `
		SELECT instance, n, count(*) FROM mixed_sent WHERE NOT repeated GROUP BY instance, n HAVING count(*) > 1`},
	{"I7 what is taken was accepted", `
		SELECT * FROM mixed_taken t
		 WHERE NOT EXISTS (SELECT FROM mixed_sent s WHERE s.instance = t.instance AND s.n = t.n AND NOT s.repeated)`},
	{"I7 who waited for signals got them all, or was cancelled", `
		SELECT g.id, g.status, g.last_error, array_agg(t.n) FROM gen_durable g LEFT JOIN mixed_taken t ON t.instance = g.id
		 WHERE g.fsm = 'mixed-waiter' AND g.state ->> 'timed' IS NULL GROUP BY g.id
		HAVING NOT CASE g.status WHEN 'done' THEN count(t.n) = 3 ELSE g.last_error LIKE 'cancelled: %' END`},
	{"I8 a parent goes on after its last child", `SELECT * FROM mixed_runs WHERE step = 'joined' AND open_children > 0`},
	{"I8 a parent goes on once a round", `
		SELECT g.id, count(e.seq) FROM gen_durable g LEFT JOIN mixed_effects e ON e.instance = g.id AND e.step = 'joined'
		 WHERE g.fsm = 'mixed-parent' AND g.status = 'done' GROUP BY g.id HAVING count(e.seq) <> 2`},
	{"I8 nobody waits for children that have ended", `SELECT id, status, children_pending FROM gen_durable WHERE children_pending <> 0`},
	{"I9 a correlation key has one live instance", `
		WITH life AS MATERIALIZED (
		    SELECT correlation, instance, min(began) AS began, max(coalesce(ended, began)) AS ended FROM mixed_runs
		     WHERE correlation IS NOT NULL AND instance NOT IN (SELECT instance FROM mixed_retried) GROUP BY correlation, instance)
		SELECT * FROM life x JOIN life y ON y.correlation = x.correlation AND y.instance > x.instance
		 WHERE y.began < x.ended AND x.began < y.ended`},
	{"I10 InTx writes once", `SELECT instance, step, seq, count(*) FROM mixed_effects GROUP BY instance, step, seq HAVING count(*) > 1`},
	{"I10 InTx writes exactly where its outcome was committed", `
		SELECT * FROM (SELECT instance_id AS instance, step, count(*) AS outcomes FROM gen_durable_history
		                WHERE step IN ('b', 'collect', 'finish', 'joined') AND outcome IN ('next', 'await', 'children', 'done') GROUP BY 1, 2) h
		  FULL JOIN (SELECT instance, step, count(*) AS effects FROM mixed_effects GROUP BY 1, 2) e USING (instance, step)
		 WHERE h.outcomes IS DISTINCT FROM e.effects`},
	{"I11 a process that is stopped lets its steps end", `SELECT * FROM mixed_runs WHERE process <> 'a1' AND ended IS NULL`},
	{"I11 a process that is stopped loses no outcome", `
		SELECT * FROM mixed_runs r
		 WHERE r.process <> 'a1'
		   AND NOT EXISTS (SELECT FROM gen_durable_history h
		                    WHERE h.instance_id = r.instance AND h.step = r.step AND h.attempt = r.attempt AND h.worker = r.worker)`},
	{"I11 a process that is stopped has nothing of what it finished repeated", `SELECT * FROM mixed_repeated WHERE process = 'b1'`},
	{"nothing runs before its time", `
		SELECT r.*, g.state FROM mixed_runs r JOIN gen_durable g ON g.id = r.instance
		 WHERE r.began < g.inserted_at + (g.state ->> 'delay')::int * interval '1 millisecond'`},
	// A claim that waits for a processor after its transaction has begun may be one of after the resume, so runs count by when they began.
	{"nothing of a paused queue is claimed", `
		SELECT p.at AS paused, r.* FROM mixed_ops p
		  JOIN mixed_runs r ON r.queue = 'side' AND r.claimed > p.at
		   AND r.began < (SELECT min(o.at) FROM mixed_ops o WHERE o.op = 'resume' AND o.at > p.at)
		 WHERE p.op = 'pause'`},
}

// mixedSizes are what there must be some of, for the checks to say anything.
var mixedSizes = []check{
	{"instances", `SELECT count(*) FROM gen_durable`},
	{"runs", `SELECT count(*) FROM mixed_runs`},
	{"processes, in fours", `SELECT count(DISTINCT process) / 4 FROM mixed_runs`},
	{"runs that failed", `SELECT count(*) FROM mixed_runs WHERE outcome = 'error'`},
	{"runs with a slot", `SELECT count(*) FROM mixed_runs WHERE gated`},
	{"runs with a key of one", `SELECT count(*) FROM mixed_runs WHERE key LIKE 'k:%'`},
	{"runs with tokens", `SELECT count(*) FROM mixed_runs WHERE rate IS NOT NULL`},
	{"steps that went on in their task", `SELECT count(*) FROM gen_durable_history WHERE status = 'executing'`},
	{"InTx outcomes", `SELECT count(*) FROM mixed_effects`},
	{"signals taken", `SELECT count(*) FROM mixed_taken`},
	{"signals repeated", `SELECT count(*) FROM mixed_sent WHERE repeated`},
	{"timeouts", `SELECT count(*) FROM gen_durable WHERE result = '"late"'`},
	{"children", `SELECT count(*) FROM gen_durable WHERE parent_id IS NOT NULL`},
	{"parents among them", `SELECT count(*) FROM gen_durable WHERE parent_id IS NOT NULL AND fsm = 'mixed-parent'`},
	{"inserts refused as duplicates", `SELECT count(*) FROM mixed_ops WHERE op = 'refuse a duplicate'`},
	{"cancelled", `SELECT count(*) FROM gen_durable_history WHERE outcome = 'cancelled'`},
	{"retried by the operator", `SELECT count(*) FROM mixed_ops WHERE op = 'retry'`},
}

// check fails the test for each check that finds something, and shows the first of it.
func (r *mixedRun) check(checks []check) {
	r.t.Helper()
	for _, c := range checks {
		rows, err := r.pool.Query(r.t.Context(), `SELECT x::text FROM (`+c.sql+`) x LIMIT 5`)
		if err != nil {
			r.t.Fatalf("%s: %v", c.name, err)
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			r.t.Fatalf("%s: %v", c.name, err)
		}
		if len(found) > 0 {
			r.t.Errorf("%s. Not so (the first of them):\n\t%s", c.name, strings.Join(found, "\n\t"))
		}
	}
}

// sizes logs how much there was of everything, and fails the test for what there was nothing of.
func (r *mixedRun) sizes() {
	r.t.Helper()
	var all []string
	for _, c := range mixedSizes {
		n := count(r.t, r.pool, c.sql)
		all = append(all, fmt.Sprintf("%d %s", n, c.name))
		if n == 0 {
			r.t.Errorf("there were no %s", c.name)
		}
	}
	r.t.Log(strings.Join(all, ", "))
}
