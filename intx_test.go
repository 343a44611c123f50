package gendurable_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

// exactSchema is a ledger without any constraint: what is written twice is there twice.
const exactSchema = `CREATE TABLE exact (instance bigint NOT NULL, step text NOT NULL)`

// exact is a machine whose every step writes a row to the ledger with InTx.
var exact = fsm.New[number]("exact").
	Step("a", exactly(func(*fsm.Call[number]) fsm.Outcome { return fsm.Next("b") })).
	Step("b", exactly(func(c *fsm.Call[number]) fsm.Outcome {
		return fsm.ScheduleChildren(double.New(number{c.State.N})).Then("c")
	})).
	Step("c", exactly(func(c *fsm.Call[number]) fsm.Outcome { return fsm.Done(c.State.N) }))

func exactly(outcome func(c *fsm.Call[number]) fsm.Outcome) fsm.StepFunc[number] {
	return func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
		return gendurable.InTx(outcome(c), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO exact (instance, step) VALUES ($1, $2)`, c.ID, c.Step)
			return err
		}), nil
	}
}

// exactInstances is how many instances the ledgers of InTx are about: more under make chaos.
func exactInstances() int {
	if os.Getenv("GENDURABLE_CHAOS") != "" {
		return 3000
	}
	return 60
}

func insertExact(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), exactSchema); err != nil {
		t.Fatal(err)
	}
	client, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	insts := make([]fsm.Instance, n)
	for i := range insts {
		insts[i] = exact.New(number{i})
	}
	if _, err := client.InsertMany(t.Context(), insts); err != nil {
		t.Fatal(err)
	}
}

// written is how many rows the ledger has; -1 when the database does not answer.
func written(pool *pgxpool.Pool) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var n int
	if pool.QueryRow(ctx, `SELECT count(*) FROM exact`).Scan(&n) != nil {
		return -1
	}
	return n
}

// wantExact waits for the end of all instances, and then expects one row a step.
func wantExact(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	for left, before := -1, -2; left != 0; before = left {
		eventually(t, "more instances to end", func() bool {
			err := pool.QueryRow(context.Background(), `SELECT count(*) FROM gen_durable WHERE status <> 'done'`).Scan(&left)
			return err == nil && (left == 0 || left != before)
		})
	}
	if rows := count(t, pool, `SELECT count(*) FROM exact`); rows != 3*n {
		t.Errorf("the ledger has %d rows, expected %d", rows, 3*n)
	}
	if twice := count(t, pool, `SELECT count(*) FROM (SELECT FROM exact GROUP BY instance, step HAVING count(*) <> 1) t`); twice != 0 {
		t.Errorf("%d steps wrote more than once", twice)
	}
	if children := count(t, pool, `SELECT count(*) FROM gen_durable WHERE fsm = 'double'`); children != n {
		t.Errorf("%d children were inserted, expected %d", children, n)
	}
}

func TestInTxUnderKill9(t *testing.T) {
	t.Parallel()
	pool := database(t)
	n := exactInstances()
	insertExact(t, pool, n)
	const kills = 2
	for i := range kills {
		w := worker(t, pool, i, envLease+"=3s")
		eventually(t, "some steps", func() bool { return written(pool) >= (i+1)*3*n/(kills+1) })
		if err := w.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = w.Wait()
	}
	worker(t, pool, kills, envLease+"=3s")
	wantExact(t, pool, n)
}

// TestInTxUnderCuts: the connections are cut at COMMIT, before the server has it and after it has committed, and otherwise
// whenever it comes.
func TestInTxUnderCuts(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t, gendurable.Migrate)
	n := exactInstances()
	insertExact(t, pool, n)
	proxy, err := devpg.NewProxy(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	through, err := pgxpool.New(t.Context(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(through.Close)
	commit := func(client []byte) bool { return strings.Contains(string(client), "commit\x00") }
	start(t, through, gendurable.Config{Machines: []fsm.Definition{exact, double}, Logger: quietly(), Lease: time.Minute, Heartbeat: time.Second})
	for i := range 6 {
		cut := proxy.CutReply(commit)
		if i%2 == 0 {
			cut = proxy.CutRequest(commit)
		}
		eventually(t, "a cut", func() bool {
			select {
			case <-cut:
				return true
			default:
				return written(pool) == 3*n // too late
			}
		})
		proxy.Cut()
	}
	wantExact(t, pool, n)
}

func TestInTxUnderRestarts(t *testing.T) {
	t.Parallel()
	server := devpg.ServerFor(t, devpg.Options{Private: true})
	pool, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := gendurable.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	n := exactInstances()
	insertExact(t, pool, n)
	start(t, pool, gendurable.Config{Machines: []fsm.Definition{exact, double}, Logger: quietly(), Lease: time.Minute, Heartbeat: time.Second})
	for i, mode := range []string{"fast", "immediate"} {
		eventually(t, "some steps", func() bool { return written(pool) >= (i+1)*n/2 })
		if err := server.Restart(t.Context(), mode); err != nil {
			t.Fatal(err)
		}
	}
	wantExact(t, pool, n)
}

// TestInTxFailures: whatever goes wrong in the function rolls back and reaches the error handler.
func TestInTxFailures(t *testing.T) {
	t.Parallel()
	pool := database(t)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE notes (what text, CONSTRAINT once UNIQUE (what) DEFERRABLE INITIALLY DEFERRED)`); err != nil {
		t.Fatal(err)
	}
	write := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO notes VALUES ('x')`)
		return err
	}
	kinds := []struct {
		name, want string
		fn         func(ctx context.Context, tx pgx.Tx) error
		opts       []gendurable.InTxOption
	}{
		{"error", "out of stock", func(ctx context.Context, tx pgx.Tx) error {
			return errors.Join(write(ctx, tx), errors.New("out of stock"))
		}, nil},
		{"panic", "panic: oh", func(ctx context.Context, tx pgx.Tx) error { _ = write(ctx, tx); panic("oh") }, nil},
		{"commit", "commits by itself", func(ctx context.Context, tx pgx.Tx) error { return errors.Join(write(ctx, tx), tx.Commit(ctx)) }, nil},
		{"rollback", "ended its transaction", func(ctx context.Context, tx pgx.Tx) error { return errors.Join(write(ctx, tx), tx.Rollback(ctx)) }, nil},
		{"swallowed", "left it failed", func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, `SELECT 1/0`); return nil }, nil},
		{"savepoint", "left a savepoint open", func(ctx context.Context, tx pgx.Tx) error {
			inner, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			return write(ctx, inner)
		}, nil},
		{"deferred", "once", func(ctx context.Context, tx pgx.Tx) error { return errors.Join(write(ctx, tx), write(ctx, tx)) }, nil},
		{"slow", "longer than its timeout of 2s", func(ctx context.Context, tx pgx.Tx) error { <-ctx.Done(); return ctx.Err() },
			[]gendurable.InTxOption{gendurable.InTxTimeout(2 * time.Second)}},
		{"nil", "function of InTx must not be nil", nil, nil},
	}
	m := fsm.New[number]("m").OnError(func(_ context.Context, c *fsm.Call[number], err error) (fsm.Outcome, error) {
		return fsm.Stop(fmt.Errorf("handled: %w", err)), nil
	}).Step("write", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
		k := kinds[c.State.N]
		return gendurable.InTx(fsm.Done(nil), k.fn, k.opts...), nil
	})
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m}, Logger: quietly()})
	for i, k := range kinds {
		s := await(t, engine, insert(t, engine, m.New(number{i})))
		if !strings.HasPrefix(s.Error, "handled: ") || !strings.Contains(s.Error, k.want) {
			t.Errorf("%s: it settled as %+v, want an error with %q", k.name, s, k.want)
		}
	}
	if n := count(t, pool, `SELECT count(*) FROM notes`); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// TestInTxOutcomes: inserts and signals in the function count from the commit on, and are announced; an await that the very
// transaction satisfies does not sleep; a cancel waits for the transaction and then ends what it made.
func TestInTxOutcomes(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var engine *gendurable.Engine
	var kid atomic.Int64
	m := fsm.New[number]("m").
		Step("begin", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return gendurable.InTx(fsm.Await("go").Then("end"), func(ctx context.Context, tx pgx.Tx) error {
				id, err := engine.InsertTx(ctx, tx, double.New(number{21}))
				kid.Store(int64(id))
				return errors.Join(err, engine.SignalTx(ctx, tx, gendurable.ID(c.ID), "go", number{1}))
			}), nil
		}).
		Step("end", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return gendurable.InTx(fsm.Done(len(c.Awaited)), func(context.Context, pgx.Tx) error { return nil }), nil
		})
	engine = start(t, pool, gendurable.Config{Machines: []fsm.Definition{m, double}, PollBusy: time.Hour, PollIdle: time.Hour})
	if s := await(t, engine, insert(t, engine, m.New(number{})), gendurable.UntilTerminal()); string(s.Result) != "1" {
		t.Errorf("it settled as %+v", s)
	}
	if s := await(t, engine, gendurable.ID(kid.Load())); string(s.Result) != "42" {
		t.Errorf("what it inserted settled as %+v", s)
	}
	if n := count(t, pool, `SELECT count(*) FROM signals`); n != 0 {
		t.Errorf("%d signals are left", n)
	}
}

// TestInTxAndCancel: a cancel that comes while the transaction is open waits for it; one that came before keeps it from running.
func TestInTxAndCancel(t *testing.T) {
	t.Parallel()
	pool := database(t)
	inStep, inTx := make(chan int64, 10), make(chan int64, 10)
	goOn := make(chan struct{}, 10)
	m := fsm.New[number]("m").
		Step("write", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			inStep <- c.ID
			<-goOn
			return gendurable.InTx(fsm.Next("later").After(time.Hour), func(context.Context, pgx.Tx) error {
				inTx <- c.ID
				<-goOn
				return nil
			}), nil
		}).
		Step("later", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) { return fsm.Done(nil), nil })
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m}})
	id := insert(t, engine, m.New(number{}))
	<-inStep
	goOn <- struct{}{}
	<-inTx
	cancelled := make(chan gendurable.Cancellation, 1)
	go func() {
		c, err := engine.Cancel(t.Context(), id, "enough")
		if err != nil {
			t.Error(err)
		}
		cancelled <- c
	}()
	eventually(t, "the cancel to wait", func() bool {
		return count(t, pool, `SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'tuple')
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`) > 0
	})
	goOn <- struct{}{}
	if c := <-cancelled; c != gendurable.CancelEnded {
		t.Errorf("the cancel that waited came to %q", c)
	}
	id = insert(t, engine, m.New(number{}))
	<-inStep
	if c, err := engine.Cancel(t.Context(), id, "enough"); err != nil || c != gendurable.CancelRequested {
		t.Errorf("%v, %v", c, err)
	}
	goOn <- struct{}{}
	if s := await(t, engine, id); s.Error != "cancelled: enough" {
		t.Errorf("it settled as %+v", s)
	}
	if len(inTx) > 0 {
		t.Error("the function ran although a cancel was requested")
	}
}
