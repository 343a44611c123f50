package system

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverContenders: 100 workers as in River's documentation; and what its own benchmark advises for throughput, which
// is many workers and the smallest fetch cooldown.
var riverContenders = []Contender{
	{
		System: "river", Config: "default", Role: Peer, Note: "MaxWorkers: 100, nothing else set",
		Rates: Rates{Jobs: 1_200},
		New: func(c Conf) System {
			return &riverSystem{conf: c, queue: river.QueueConfig{MaxWorkers: c.slots(100)}, conns: 20}
		},
	},
	{
		System: "river", Config: "tuned", Role: Peer, Note: "MaxWorkers: 1000, FetchCooldown: 1ms",
		Rates: Rates{Jobs: 35_000},
		New: func(c Conf) System {
			return &riverSystem{conf: c, queue: river.QueueConfig{MaxWorkers: c.slots(1000), FetchCooldown: time.Millisecond}, conns: 40}
		},
	},
}

// riverSystem is River. It has no steps, signals or children.
type riverSystem struct {
	conf     Conf
	queue    river.QueueConfig
	conns    int32
	pool     *pgxpool.Pool
	client   *river.Client[pgx.Tx]
	started  bool
	ended    atomic.Int64
	running  atomic.Int64
	release  chan struct{}
	released sync.Once

	events  <-chan *river.Event
	mu      sync.Mutex
	waiting map[int64]chan struct{} // of callers, by job
	early   map[int64]struct{}      // completed before the caller knew the id
}

func (payload) Kind() string { return "job" }

type riverOccupied struct {
	N int `json:"n"`
}

func (riverOccupied) Kind() string { return "occupied" }

type riverJob struct {
	river.WorkerDefaults[payload]
	ended *atomic.Int64
}

func (w *riverJob) Work(context.Context, *river.Job[payload]) error {
	w.ended.Add(1)
	return nil
}

type riverLong struct {
	river.WorkerDefaults[riverOccupied]
	system *riverSystem
}

func (w *riverLong) Work(ctx context.Context, _ *river.Job[riverOccupied]) error {
	w.system.running.Add(1)
	select {
	case <-w.system.release:
	case <-ctx.Done():
	}
	return nil
}

func (r *riverSystem) Setup(ctx context.Context) (err error) {
	r.release = make(chan struct{})
	if r.pool, err = r.conf.DB.Open(ctx, r.conns); err != nil {
		return err
	}
	driver := riverpgxv5.New(r.pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: r.conf.Log})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverJob{ended: &r.ended})
	river.AddWorker(workers, &riverLong{system: r})
	r.client, err = river.NewClient(driver, &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: r.queue},
		Workers: workers,
		Logger:  r.conf.Log,
	})
	return err
}

func (r *riverSystem) Start(context.Context) error {
	r.started = true
	return r.client.Start(context.Background())
}

func (r *riverSystem) Stop(ctx context.Context) (err error) {
	if r.release != nil {
		r.released.Do(func() { close(r.release) })
	}
	if r.started {
		err = r.client.Stop(ctx)
	}
	if r.pool != nil {
		r.pool.Close()
	}
	return err
}

func (r *riverSystem) Ended() string {
	return "SELECT finalized_at AS at FROM river_job WHERE state = 'completed'"
}
func (r *riverSystem) Progress() int64 { return r.ended.Load() }

func (r *riverSystem) params(n int) []river.InsertManyParams {
	params := make([]river.InsertManyParams, n)
	for i := range params {
		params[i].Args = thePayload
	}
	return params
}

func (r *riverSystem) LoadJobs(ctx context.Context, n int) error {
	return inBatches(n, 10_000, func(from, to int) error { return r.InsertBulk(ctx, to-from) })
}

// Once waits for the event of the job's completion, which is how River tells of it within the process.
func (r *riverSystem) Once(ctx context.Context) error {
	r.listen()
	inserted, err := r.client.Insert(ctx, thePayload, nil)
	if err != nil {
		return err
	}
	id := inserted.Job.ID
	done := make(chan struct{})
	r.mu.Lock()
	if _, ok := r.early[id]; ok {
		delete(r.early, id)
		close(done)
	} else {
		r.waiting[id] = done
	}
	r.mu.Unlock()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.New("river: no completion event")
	}
}

func (r *riverSystem) listen() {
	if r.events != nil {
		return
	}
	r.waiting, r.early = map[int64]chan struct{}{}, map[int64]struct{}{}
	events, _ := r.client.Subscribe(river.EventKindJobCompleted)
	r.events = events
	go func() {
		for e := range events {
			r.mu.Lock()
			if done, ok := r.waiting[e.Job.ID]; ok {
				delete(r.waiting, e.Job.ID)
				close(done)
			} else {
				r.early[e.Job.ID] = struct{}{}
			}
			r.mu.Unlock()
		}
	}()
}

func (r *riverSystem) Occupy(ctx context.Context, n int) (func(), error) {
	params := make([]river.InsertManyParams, n)
	for i := range params {
		params[i].Args = riverOccupied{}
	}
	if _, err := r.client.InsertManyFast(ctx, params); err != nil {
		return nil, err
	}
	return func() { r.released.Do(func() { close(r.release) }) },
		until(ctx, func() bool { return r.running.Load() >= int64(n) })
}

func (r *riverSystem) InsertOne(ctx context.Context) error {
	_, err := r.client.Insert(ctx, thePayload, nil)
	return err
}

func (r *riverSystem) InsertMany(ctx context.Context, n int) error {
	_, err := r.client.InsertMany(ctx, r.params(n))
	return err
}

func (r *riverSystem) InsertBulk(ctx context.Context, n int) error {
	_, err := r.client.InsertManyFast(ctx, r.params(n))
	return err
}

func (r *riverSystem) Rows() string { return "SELECT count(*) FROM river_job" }
