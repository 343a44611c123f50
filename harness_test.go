package gendurable_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
	"github.com/gendurable/gendurable/pg"
)

// TestMain lets the test binary be its own worker process (see process_test.go) and looks for leaked goroutines.
func TestMain(m *testing.M) {
	if os.Getenv(envWorker) != "" {
		os.Exit(runWorker())
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/gendurable/gendurable/internal/devpg.supervise"),
		goleak.Cleanup(func(code int) {
			stopBouncer()
			os.Exit(code)
		}))
}

// patience is how long a test waits for what must happen. It says nothing about how long it should take.
const patience = 2 * time.Minute

// eventually polls until ok, and fails the test when that takes longer than patience.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(patience)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !ok() {
		select {
		case <-late:
			t.Fatalf("in vain waited for: %s", what)
		case <-look.C:
		}
	}
}

// database gives a test a migrated database of its own.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := devpg.Database(t, pg.Migrate)
	if os.Getenv(envBouncer) != "" {
		return bounced(t, pool)
	}
	return pool
}

// quietly is a logger for tests that provoke failures.
func quietly() *slog.Logger { return slog.New(slog.DiscardHandler) }

// start runs an engine until the end of the test.
func start(t testing.TB, pool *pgxpool.Pool, cfg gendurable.Config) *gendurable.Engine {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	cfg = withTestPokes(cfg)
	if cfg.Pokes == gendurable.PokePostgres && cfg.ListenURL == "" && direct(pool) != pool.Config().ConnString() {
		cfg.ListenURL = direct(pool)
	}
	engine, err := gendurable.Start(t.Context(), pool, cfg)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() { stop(t, engine) })
	return engine
}

func stop(t testing.TB, engine *gendurable.Engine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	gaveUp := engine.Err() // which is what Stop then returns
	if err := engine.Stop(ctx); err != nil && !errors.Is(err, gaveUp) {
		t.Errorf("stop: %v", err)
	}
}

func insert(t testing.TB, c *gendurable.Engine, inst fsm.Instance, opts ...fsm.InsertOption) gendurable.ID {
	t.Helper()
	id, err := c.Insert(t.Context(), inst, opts...)
	if err != nil {
		t.Fatalf("insert: %v", err)
	}
	return id
}

func await(t testing.TB, c *gendurable.Engine, ref gendurable.Ref, opts ...gendurable.AwaitOption) gendurable.Settled {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := c.Await(ctx, ref, opts...)
	if err != nil {
		t.Fatalf("await %v: %v", ref, err)
	}
	return s
}

// count returns the number that a query yields.
func count(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) int {
	t.Helper()
	var n int
	if err := pool.QueryRow(context.Background(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

type number struct {
	N int `json:"n"`
}

// double is a job that needs nothing.
var double = fsm.NewJob("double", func(_ context.Context, j *fsm.JobCall[number]) (int, error) { return 2 * j.Args.N, nil })

func doubles(n int) []fsm.Instance {
	insts := make([]fsm.Instance, n)
	for i := range insts {
		insts[i] = double.New(number{i})
	}
	return insts
}

// gate is a machine whose steps report and then wait until they are let on.
type gate struct {
	entered chan int64
	open    chan struct{}
	runs    atomic.Int64
}

func newGate() *gate { return &gate{entered: make(chan int64, 1000), open: make(chan struct{})} }

func (g *gate) machine(name string, opts ...fsm.Option) *fsm.Machine[number] {
	return fsm.New[number](name, opts...).Step("wait", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
		g.runs.Add(1)
		g.entered <- c.ID
		select {
		case <-g.open:
			return fsm.Done(c.State.N), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
}
