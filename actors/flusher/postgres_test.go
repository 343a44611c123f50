package flusher

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/internal/devpg"
	"github.com/gendurable/gendurable/pg"
)

const worker = "gendurable:default@test-0123456789abcdef"

// real is a flusher over a Postgres database.
type real struct {
	*bench
	host  *pgxpool.Pool
	store *pg.Store
}

func startReal(t *testing.T, host *pgxpool.Pool) *real {
	t.Helper()
	ctx := t.Context()
	pool, err := pg.EnginePool(ctx, host, 6)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store, err := pg.Open(ctx, pool, pg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	r := &real{bench: &bench{t: t, system: actors.NewSystem(log), c: new(actors.Counters)}, host: host, store: store}
	r.spawn(Config{Logger: log, Counters: r.c, Rows: store,
		Main: store.NewCommitter("main-" + t.Name()), Side: store.NewCommitter("side-" + t.Name())})
	return r
}

// claimed inserts n rows and claims them.
func (r *real) claimed(n int) []int64 {
	r.t.Helper()
	rows := make([]pg.Insertion, n)
	for i := range rows {
		rows[i] = pg.Insertion{Machine: "m", Version: 1, Step: "a", State: []byte(`{}`), Queue: "default"}
	}
	if _, err := r.store.Insert(r.t.Context(), r.host, rows); err != nil {
		r.t.Fatal(err)
	}
	got, err := r.store.Claim(r.t.Context(), pg.ClaimRequest{Queue: "default", Worker: worker, Lease: time.Hour, Limit: n})
	if err != nil || len(got) != n {
		r.t.Fatalf("claimed %d of %d: %v", len(got), n, err)
	}
	ids := make([]int64, n)
	for i := range got {
		ids[i] = got[i].ID
	}
	return ids
}

// finish commits the end of a row, asking again while the flusher restarts. It returns false when the test must end.
func (r *real) finish(id int64) bool {
	for {
		got := <-r.commit(pg.Outcome{ID: id, Worker: worker, Kind: pg.KindDone, Result: []byte(`1`)}, nil)
		switch {
		case errors.Is(got.Err, actors.ErrRestarting):
			continue
		case got.Err != nil:
			r.t.Errorf("%d: %v", id, got.Err)
			return false
		case got.Verdict.Fate != pg.Committed || got.Verdict.Status != pg.Done:
			r.t.Errorf("%d: %+v", id, got.Verdict)
			return false
		}
		return true
	}
}

// finishAll finishes rows from so many callers at once and calls at after each with the number finished so far.
func (r *real) finishAll(ids []int64, callers int, at func(done int64)) {
	var next, done atomic.Int64
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(len(ids)) || !r.finish(ids[i]) {
					return
				}
				at(done.Add(1))
			}
		})
	}
	wg.Wait()
}

func (r *real) count(status string) (n int) {
	r.t.Helper()
	err := r.host.QueryRow(r.t.Context(), `SELECT count(*) FROM gen_durable WHERE status = $1::durable_status`, status).Scan(&n)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func TestPostgresRefusesOneOf200(t *testing.T) {
	t.Parallel()
	r := startReal(t, devpg.Database(t, pg.Migrate))
	ids := r.claimed(200)
	replies := make([]chan actors.Committed, len(ids))
	for i, id := range ids {
		state := `{"ok": true}`
		if i == 123 {
			state = `{"bad": "\u0000"}` // valid JSON that jsonb cannot hold
		}
		replies[i] = r.commit(pg.Outcome{ID: id, Worker: worker, Kind: pg.KindNext, Step: "b", State: []byte(state)}, nil)
	}
	for i, ch := range replies {
		got := wait1(t, ch)
		if _, refused := errors.AsType[*actors.RefusedError](got.Err); refused != (i == 123) {
			t.Errorf("entry %d got %+v", i, got)
		}
	}
	if n := r.count("runnable"); n != 199 {
		t.Errorf("%d rows moved on, want 199", n)
	}
	if n := r.count("executing"); n != 1 {
		t.Errorf("%d rows are still owned, want the refused one", n)
	}
}

func TestPostgresRowLockedByTheHost(t *testing.T) {
	t.Parallel()
	r := startReal(t, devpg.Database(t, pg.Migrate))
	ids := r.claimed(2001)
	held, free := ids[1000], append(ids[:1000:1000], ids[1001:]...)
	tx, err := r.host.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM gen_durable WHERE id = $1 FOR NO KEY UPDATE`, held); err != nil {
		t.Fatal(err)
	}
	slow := make(chan bool, 1)
	go func() { slow <- r.finish(held) }()
	r.finishAll(free, 100, func(int64) {})
	if n := r.count("done"); n != 2000 {
		t.Errorf("%d rows done while one is locked, want 2000", n)
	}
	if len(slow) > 0 {
		t.Error("the locked row was finished")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait1(t, slow)
	if n := r.count("done"); n != 2001 {
		t.Errorf("%d rows done, want 2001", n)
	}
	if n := r.c.SlowLane.Load(); n != 1 {
		t.Errorf("%d entries went to the side lane, want 1", n)
	}
}

func TestPostgresCorrelationKeyHeldByTheHost(t *testing.T) {
	t.Parallel()
	r := startReal(t, devpg.Database(t, pg.Migrate))
	ids := r.claimed(300)
	tx, err := r.host.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	child := pg.Insertion{Machine: "m", Version: 1, Step: "a", State: []byte(`{}`), Queue: "elsewhere",
		CorrelationKey: "taken", CorrelationScope: []string{"runnable", "executing", "awaiting_signal", "awaiting_children"}}
	if _, err := r.store.Insert(t.Context(), tx, []pg.Insertion{child}); err != nil {
		t.Fatal(err)
	}
	parent := r.commit(pg.Outcome{ID: ids[0], Worker: worker, Kind: pg.KindChildren, Step: "b", State: []byte(`{}`), Children: []pg.Insertion{child}}, nil)
	r.finishAll(ids[1:], 50, func(int64) {})
	if len(parent) > 0 {
		t.Error("the fan-out did not wait for the key")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := wait1(t, parent); got.Err != nil || got.Verdict.Children != 1 {
		t.Errorf("got %+v", got)
	}
}

func TestPostgresFlusherKilledUnderLoad(t *testing.T) {
	t.Parallel()
	r := startReal(t, devpg.Database(t, pg.Migrate))
	r.finishAll(r.claimed(3000), 64, func(done int64) {
		if done%500 == 250 {
			r.system.Root.Send(r.pid, actors.Crash{})
		}
	})
	if n := r.count("done"); n != 3000 {
		t.Errorf("%d rows done, want 3000", n)
	}
	if r.c.Panics.Load() == 0 || r.c.Stale.Load() != 0 {
		t.Errorf("crashes %d, stale %d", r.c.Panics.Load(), r.c.Stale.Load())
	}
}

func TestPostgresRestartedUnderLoad(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"fast", "immediate"} {
		t.Run(mode, func(t *testing.T) {
			server := devpg.ServerFor(t, devpg.Options{})
			host, err := pgxpool.New(t.Context(), server.URL())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(host.Close)
			if err := pg.Migrate(t.Context(), host); err != nil {
				t.Fatal(err)
			}
			r := startReal(t, host)
			ids := r.claimed(3000)
			restarts := make(chan error, 1)
			r.finishAll(ids, 32, func(done int64) {
				if done == 700 {
					go func() { restarts <- server.Restart(context.Background(), mode) }()
				}
			})
			if err := wait1(t, restarts); err != nil {
				t.Fatal(err)
			}
			host.Reset()
			if n := r.count("done"); n != 3000 {
				t.Errorf("%d rows done, want 3000", n)
			}
			if n := r.c.Stale.Load(); n != 0 {
				t.Errorf("%d outcomes were called stale", n)
			}
		})
	}
}
