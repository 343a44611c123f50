package system

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
)

// floorBatch and floorWriters were the fastest of 200 to 1,000 rows and one to four writers.
const (
	floorBatch   = 500
	floorWriters = 2
)

var floorContenders = []Contender{{
	System: "floor", Role: Floor,
	Note:  "raw SQL: two writers, batches of 500, flush and next claim in one round trip and transaction",
	Rates: Rates{Jobs: 70_000, Steps: 70_000, Signals: 6_000, Children: 40_000},
	New:   func(c Conf) System { return &floor{conf: c, wake: make(chan struct{}, 1)} },
}}

// floor is what Postgres can do when nothing but the SQL of the hot path runs, in loops.
type floor struct {
	conf     Conf
	pool     *pgxpool.Pool // of callers
	private  *pgxpool.Pool // of the writers
	cancel   context.CancelFunc
	running  sync.WaitGroup
	failed   atomic.Pointer[error]
	progress atomic.Int64
	wake     chan struct{}
	waiting  sync.Map // id → chan struct{} of a caller
	ids      []int64
	children int
}

func (f *floor) Setup(ctx context.Context) (err error) {
	if f.pool, err = f.conf.DB.Open(ctx, 20); err != nil {
		return err
	}
	if err := gendurable.Migrate(ctx, f.pool); err != nil {
		return err
	}
	cfg := f.pool.Config()
	cfg.MaxConns = floorWriters
	maps.Copy(cfg.ConnConfig.RuntimeParams, floorSession)
	f.private, err = pgxpool.NewWithConfig(ctx, cfg)
	return err
}

func (f *floor) Start(context.Context) error {
	run, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	if f.conf.Retain > 0 {
		f.running.Go(func() { f.collect(run) })
	}
	for i := range floorWriters {
		w := &writer{f: f, pool: f.private, name: "floor" + strconv.Itoa(i)}
		f.running.Go(func() {
			if err := w.run(run); err != nil && run.Err() == nil {
				f.failed.Store(&err)
				f.conf.Log.Error("the floor's writer failed", "error", err)
			}
		})
	}
	return nil
}

// collect deletes what is older than the retention, and lets VACUUM at it.
func (f *floor) collect(ctx context.Context) {
	for ctx.Err() == nil {
		tag, err := f.pool.Exec(ctx, floorCollect, f.conf.Retain.Seconds(), 10_000)
		if err == nil && tag.RowsAffected() == 10_000 {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
			_, _ = f.pool.Exec(ctx, "VACUUM (SKIP_LOCKED, INDEX_CLEANUP AUTO) gen_durable")
		}
	}
}

func (f *floor) Stop(context.Context) error {
	if f.cancel != nil {
		f.cancel()
		f.running.Wait()
	}
	for _, p := range []*pgxpool.Pool{f.private, f.pool} {
		if p != nil {
			p.Close()
		}
	}
	if err := f.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *floor) Ended() string {
	return "SELECT updated_at AS at FROM gen_durable WHERE status = 'done'"
}
func (f *floor) Progress() int64 { return f.progress.Load() }

// report tells callers and the counter of a batch that is committed.
func (f *floor) report(out *outcomes) {
	f.progress.Add(int64(out.completed))
	for _, id := range out.done {
		if done, ok := f.waiting.LoadAndDelete(id); ok {
			close(done.(chan struct{}))
		}
	}
	if len(out.spawn) > 0 || len(out.next) > 0 {
		f.poke()
	}
}

func (f *floor) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *floor) load(ctx context.Context, n int, step string) error {
	return inBatches(n, 1000, func(from, to int) error {
		return f.insertMany(ctx, to-from, step)
	})
}

func (f *floor) insertMany(ctx context.Context, n int, step string) error {
	steps, states := make([]string, n), make([]payload, n)
	for i := range n {
		steps[i], states[i] = step, thePayload
	}
	rows, err := f.pool.Query(ctx, floorInsertMany, steps, states)
	if err != nil {
		return err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if step == "park" {
		f.ids = append(f.ids, ids...)
	}
	return err
}

func (f *floor) LoadJobs(ctx context.Context, n int) error   { return f.load(ctx, n, "job") }
func (f *floor) LoadChains(ctx context.Context, n int) error { return f.load(ctx, n, "c0") }
func (f *floor) LoadInline(ctx context.Context, n int) error { return f.load(ctx, n, "k0") }

func (f *floor) Once(ctx context.Context) error {
	id, err := f.insert(ctx, "job")
	if err != nil {
		return err
	}
	done := make(chan struct{})
	f.waiting.Store(id, done)
	f.poke()
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("floor: row %d: %w", id, ctx.Err())
		case <-time.After(20 * time.Millisecond):
			// It may have been done before the caller was registered: then nobody closes the channel.
			var ended bool
			err := f.pool.QueryRow(ctx, "SELECT status = 'done' FROM gen_durable WHERE id = $1", id).Scan(&ended)
			if err != nil || ended {
				f.waiting.Delete(id)
				return err
			}
		}
	}
}

// Occupy does nothing: the floor has no slots, and a long step elsewhere does not concern its loops.
func (f *floor) Occupy(context.Context, int) (func(), error) { return func() {}, nil }

func (f *floor) insert(ctx context.Context, step string) (id int64, err error) {
	err = f.pool.QueryRow(ctx, floorInsert, step, thePayload).Scan(&id)
	return id, err
}

func (f *floor) LoadWaiting(ctx context.Context, n int) error { return f.load(ctx, n, "park") }
func (f *floor) Parked() string {
	return "SELECT count(*) FROM gen_durable WHERE status = 'awaiting_signal'"
}

func (f *floor) Signal(ctx context.Context, i int) error {
	_, err := f.pool.Exec(ctx, floorSignal, f.ids[i], thePayload)
	f.poke()
	return err
}

func (f *floor) SignalMany(ctx context.Context, from, to int) error {
	_, err := f.pool.Exec(ctx, floorSignals, f.ids[from:to], thePayload)
	f.poke()
	return err
}

func (f *floor) Parent(ctx context.Context, n int) error {
	f.children = n
	_, err := f.insert(ctx, "spawn")
	f.poke()
	return err
}

func (f *floor) InsertOne(ctx context.Context) error {
	_, err := f.insert(ctx, "job")
	return err
}

func (f *floor) InsertMany(ctx context.Context, n int) error { return f.insertMany(ctx, n, "job") }

func (f *floor) InsertBulk(ctx context.Context, n int) error {
	columns := []string{"fsm", "step", "state", "has_inbox", "has_children"}
	copied, err := f.pool.CopyFrom(ctx, pgx.Identifier{"gen_durable"}, columns,
		pgx.CopyFromSlice(n, func(int) ([]any, error) { return []any{"floor", "job", thePayload, false, false}, nil }))
	if err == nil && copied != int64(n) {
		err = errors.New("floor: COPY copied fewer rows")
	}
	return err
}

func (f *floor) Rows() string { return "SELECT count(*) FROM gen_durable" }

// inBatches calls do for n in parts of at most size.
func inBatches(n, size int, do func(from, to int) error) error {
	for from := 0; from < n; from += size {
		if err := do(from, min(from+size, n)); err != nil {
			return err
		}
	}
	return nil
}

// inParallel calls do for each i below n from some goroutines, and stops at the first error.
func inParallel(ctx context.Context, n, goroutines int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var group sync.WaitGroup
	for range goroutines {
		group.Go(func() {
			for i := next.Add(1) - 1; i < int64(n) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := do(ctx, int(i)); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}
