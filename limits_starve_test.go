package gendurable_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// backlog puts n runnable rows of the job, as old as can be, each with the columns that the expressions over i make.
func backlog(t *testing.T, pool *pgxpool.Pool, job fsm.Instance, n int, key, rate string) {
	t.Helper()
	in, err := job.Insertion(fsm.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = pool.Exec(t.Context(), fmt.Sprintf(`
		INSERT INTO gen_durable (fsm, step, state, eligible_at, concurrency_key, rate_limit, has_inbox, has_children)
		SELECT $1, $2, $3, now() - interval '1 h' + i * interval '1 ms', %s, %s, false, false FROM generate_series(1, %d) i`, key, rate, n),
		in.Machine, in.Step, in.State)
	if err == nil {
		_, err = pool.Exec(t.Context(), `ANALYZE gen_durable`)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// rowsWritten is how many rows of the queue and of the counters were ever written, by the database's statistics. They lag: a
// session reports when it has been idle for ten seconds.
func rowsWritten(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return count(t, pool, `SELECT sum(n_tup_ins + n_tup_upd + n_tup_del)::int FROM pg_stat_user_tables
	                        WHERE relname IN ('gen_durable', 'gen_durable_buckets')`)
}

// versions is a sum over the present versions of these rows: another one after any write.
func versions(t *testing.T, pool *pgxpool.Pool) int {
	t.Helper()
	return count(t, pool, `SELECT sum(hashtext(v.at || ' ' || v.by)) FROM (
		SELECT ctid::text AS at, xmin::text AS by FROM gen_durable UNION ALL SELECT ctid::text, xmin::text FROM gen_durable_buckets) v`)
}

// claims is how many claims a queue has made.
func claims(e *gendurable.Engine) int64 { return e.Stats().Queues["default"].Claims }

// idlesQuietly expects that nothing is written while the queue goes on looking for work. A long run watches the database's
// statistics for a minute, too.
func idlesQuietly(t *testing.T, pool *pgxpool.Pool, e *gendurable.Engine, what string) {
	t.Helper()
	unchanged := func(of func(*testing.T, *pgxpool.Pool) int, looks int64) (settled int) {
		settled = of(t, pool)
		since := claims(e)
		eventually(t, what+": the queue comes to rest", func() bool {
			if now := of(t, pool); now != settled {
				settled, since = now, claims(e)
			}
			return claims(e) >= since+looks
		})
		return settled
	}
	looking := func(n int64) {
		since := claims(e)
		eventually(t, what+": it goes on looking", func() bool { return claims(e) >= since+n })
	}
	settled := unchanged(versions, 10)
	looking(20)
	if versions(t, pool) != settled {
		t.Errorf("%s: rows were written while nothing could change", what)
	}
	if chaos {
		before := unchanged(rowsWritten, 400) // twenty seconds
		looking(600)
		looking(600) // a minute
		if n := rowsWritten(t, pool) - before; n != 0 {
			t.Errorf("%s: %d rows were written while nothing could change", what, n)
		}
	}
}

// saturated are backlogs whose limit has nothing left, and how it comes to that.
var saturated = []struct {
	name      string
	n         int
	key, rate string
}{
	{"one key of a gate", 100_000, `'g'`, "NULL"},
	{"many keys of a gate", 10_000, `'g:' || i`, "NULL"},
	{"one key of a rate", ifChaos(100_000, 20_000), "NULL", `'r'`},
	{"many keys of a rate", 10_000, "NULL", `'r:' || i`},
	{"one key without a gate", ifChaos(100_000, 20_000), `'k'`, "NULL"},
}

// TestSaturatedKeysDelayNobody: a backlog whose limit has nothing left owns the head of the queue. A fresh row behind it runs,
// long before anything is freed, and an idle queue writes nothing. A row of it that is to be ended waits for no limit.
func TestSaturatedKeysDelayNobody(t *testing.T) {
	for _, c := range saturated {
		t.Run(c.name, func(t *testing.T) {
			pool := database(t)
			limited := fsm.NewJob("limited", func(context.Context, *fsm.JobCall[number]) (int, error) { return 0, nil })
			cfg := gendurable.Config{
				Machines: []fsm.Definition{limited, double}, Gates: map[string]gendurable.Gate{"g": {Limit: 1}},
				RateLimits: map[string]gendurable.RateLimit{"r": {Allowed: 1, Per: 240 * time.Hour}},
				PollBusy:   50 * time.Millisecond, PollIdle: 50 * time.Millisecond, GCInterval: time.Hour, DeadlineSweep: time.Hour,
				LeaseSweep: 50 * time.Millisecond, Heartbeat: 2 * time.Second,
			}
			backlog(t, pool, limited.New(number{}), c.n, c.key, c.rate)
			// Another process has all there is to have.
			if _, err := pool.Exec(t.Context(), `
				INSERT INTO gen_durable_buckets (kind, key, shard, capacity, available, last_refill, counted)
				SELECT 'conc', key, 0, 1, 0, NULL::timestamptz, pg_current_snapshot()
				  FROM (SELECT DISTINCT concurrency_key AS key FROM gen_durable WHERE concurrency_key LIKE 'g%') k
				UNION ALL
				SELECT 'rate', key, 0, 1, 0, now(), NULL
				  FROM (SELECT DISTINCT rate_limit AS key FROM gen_durable WHERE rate_limit IS NOT NULL) k`); err != nil {
				t.Fatal(err)
			}
			if _, err := pool.Exec(t.Context(), `
				INSERT INTO gen_durable (fsm, step, queue, status, concurrency_key, concurrency_shard, locked_by, lease_expires_at)
				SELECT DISTINCT 'x', 'x', 'elsewhere', 'executing'::durable_status, concurrency_key, CASE WHEN concurrency_key LIKE 'g%' THEN 0 END,
				       'other:q@n-0000000000000000', now() + interval '1 day'
				  FROM gen_durable WHERE concurrency_key IS NOT NULL`); err != nil {
				t.Fatal(err)
			}
			engine := start(t, pool, cfg)
			await(t, engine, insert(t, engine, double.New(number{1})), gendurable.UntilTerminal())
			// A claim may be on its way back just now: what was claimed for the first look is denied, and released.
			eventually(t, "the backlog is left alone", func() bool {
				return count(t, pool, `SELECT count(*) FROM gen_durable WHERE fsm = 'limited' AND status <> 'runnable'`) == 0
			})
			idlesQuietly(t, pool, engine, c.name)
			await(t, engine, insert(t, engine, double.New(number{2})), gendurable.UntilTerminal())
			endsTheLast(t, pool, engine)
		})
	}
}

// endsTheLast expects that the last row of the backlog ends, although all before it and it itself are denied, once its process has
// died and left a cancel that was requested.
func endsTheLast(t *testing.T, pool *pgxpool.Pool, e *gendurable.Engine) {
	t.Helper()
	var id int64
	if err := pool.QueryRow(t.Context(), `
		UPDATE gen_durable SET status = 'executing', concurrency_shard = CASE WHEN concurrency_key IS NOT NULL THEN -1 END,
		       locked_by = 'other:q@n-0000000000000000', lease_expires_at = now() - interval '1 s', cancel_requested = 'enough'
		 WHERE id = (SELECT max(id) FROM gen_durable WHERE fsm = 'limited') RETURNING id`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	if s := await(t, e, gendurable.ID(id), gendurable.UntilTerminal()); s.Error != "cancelled: enough" {
		t.Errorf("the cancelled row settled as %+v", s)
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE fsm = 'limited' AND status NOT IN ('runnable', 'executing')`); n != 1 {
		t.Errorf("%d rows of the backlog have ended with it", n-1)
	}
}

// TestOneKeyDrainsAtTheSpeedOfItsSteps: 10,000 rows of one key without a gate own the head of the queue. Each is claimed when
// the one before has ended, not when it is time to poll, which is never here; and what is behind them does not wait.
func TestOneKeyDrainsAtTheSpeedOfItsSteps(t *testing.T) {
	pool := database(t)
	inside := newTurnstile()
	one := fsm.NewJob("one", func(context.Context, *fsm.JobCall[number]) (int, error) {
		defer inside.enter("k")()
		return 0, nil
	})
	backlog(t, pool, one.New(number{}), oneKeyRows, `'k'`, "NULL")
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{one, double}, PollBusy: time.Hour, PollIdle: time.Hour, LeaseSweep: time.Hour,
	})
	await(t, engine, insert(t, engine, double.New(number{1})), gendurable.UntilTerminal())
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE fsm = 'one' AND status = 'done'`); n == oneKeyRows {
		t.Errorf("what is behind the key waited for all of it")
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%+v", engine.Stats().Queues["default"])
		}
	})
	terminal(t, pool, oneKeyRows+1)
	if inside.most["k"] != 1 {
		t.Errorf("%d ran at once", inside.most["k"])
	}
	q := engine.Stats().Queues["default"]
	t.Logf("%d claims for %d rows, %d of them empty", q.Claims, q.ClaimedRows, q.EmptyClaims)
	if q.ClaimedRows != int64(oneKeyRows)+1 || q.Claims > 3*int64(oneKeyRows) {
		t.Errorf("%d claims for %d rows", q.Claims, q.ClaimedRows)
	}
}
