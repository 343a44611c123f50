package scheduler_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
	"github.com/gendurable/gendurable/pg"
)

const worker = "test:q@n-0123456789abcdef"

// engine is a queue on a real database. A small actor stands in for the flusher: it writes as soon as it is
// free, and pokes the queue when a flush woke something.
type engine struct {
	t      *testing.T
	host   *pgxpool.Pool
	store  *pg.Store
	system *actor.ActorSystem
	queue  *actor.PID
	counts *actors.QueueCounters
}

type flushed struct {
	commits []actors.Commit
	result  pg.Flushed
	err     error
}

// committing is the stand-in for the flusher.
type committing struct {
	e         *engine
	committer *pg.Committer
	waiting   []actors.Commit
	writing   bool
}

func (c *committing) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case actors.Commit:
		c.waiting = append(c.waiting, m)
	case flushed:
		c.writing = false
		if m.err != nil {
			c.waiting = append(c.waiting, m.commits...)
			break
		}
		for i, commit := range m.commits {
			commit.Reply <- actors.Committed{Verdict: m.result.Verdicts[i]}
		}
		if len(m.result.Woken) > 0 {
			ctx.Send(c.e.queue, actors.Poke{Queue: "q"})
		}
	default:
		return
	}
	if c.writing || len(c.waiting) == 0 {
		return
	}
	batch := c.waiting
	c.waiting, c.writing = nil, true
	outcomes := make([]pg.Outcome, len(batch))
	for i := range batch {
		outcomes[i] = batch[i].Outcome
	}
	root, self := ctx.ActorSystem().Root, ctx.Self()
	go func() {
		result, err := c.committer.Flush(context.Background(), outcomes)
		root.Send(self, flushed{batch, result, err})
	}()
}

func start(t *testing.T, change func(*scheduler.Config), defs ...fsm.Definition) *engine {
	t.Helper()
	host := devpg.Database(t, pg.Migrate)
	pool, err := pg.EnginePool(t.Context(), host, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store, err := pg.Open(t.Context(), pool, pg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	e := &engine{t: t, host: host, store: store, system: actors.NewSystem(logger), counts: new(actors.QueueCounters)}
	specs := map[string]*fsm.Spec{}
	for _, d := range defs {
		specs[d.Spec().Name] = d.Spec()
	}
	flusher := e.system.Root.Spawn(actor.PropsFromProducer(func() actor.Actor {
		return &committing{e: e, committer: store.NewCommitter("test-0")}
	}))
	cfg := scheduler.Config{
		Queue: "q", Worker: worker, Store: store, Logger: logger, QueueCounters: e.counts, Concurrency: 10,
		Specs:    func(machine string, _ int) *fsm.Spec { return specs[machine] },
		Flushers: []*actor.PID{flusher}, DrainGrace: time.Minute,
	}
	if change != nil {
		change(&cfg)
	}
	e.queue = e.system.Root.Spawn(scheduler.Props(cfg))
	t.Cleanup(func() {
		e.drain(5 * time.Second)
		_ = e.system.Root.StopFuture(e.queue).Wait()
		_ = e.system.Root.StopFuture(flusher).Wait()
	})
	return e
}

func (e *engine) drain(timeout time.Duration) {
	done := make(chan struct{})
	e.system.Root.Send(e.queue, actors.Drain{Timeout: timeout, Done: done})
	select {
	case <-done:
	case <-time.After(time.Minute):
		e.t.Error("the drain does not end")
	}
}

func (e *engine) insert(instances ...fsm.Instance) []int64 {
	e.t.Helper()
	rows := make([]pg.Insertion, len(instances))
	for i, in := range instances {
		row, err := in.Insertion(fsm.Limits{})
		if err != nil {
			e.t.Fatal(err)
		}
		rows[i] = pg.Insertion(row)
		rows[i].Queue = "q"
	}
	inserted, err := e.store.Insert(e.t.Context(), e.host, rows)
	if err != nil {
		e.t.Fatal(err)
	}
	ids := make([]int64, len(inserted))
	for i, in := range inserted {
		ids[i] = in.ID
	}
	e.system.Root.Send(e.queue, actors.Poke{Queue: "q"})
	return ids
}

func (e *engine) get(id int64) *pg.Instance {
	in, err := e.store.Get(context.Background(), e.host, id)
	if err != nil || in == nil {
		e.t.Fatal(in, err)
	}
	return in
}

func (e *engine) count(status pg.Status) (n int) {
	if err := e.host.QueryRow(context.Background(), `SELECT count(*) FROM gen_durable WHERE status = $1`, status).Scan(&n); err != nil {
		e.t.Fatal(err)
	}
	return n
}

func (e *engine) until(what string, cond func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); {
		if time.Now().After(deadline) {
			e.t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

type args struct{ N int }

func many(n int, one func(i int) fsm.Instance) []fsm.Instance {
	all := make([]fsm.Instance, n)
	for i := range all {
		all[i] = one(i)
	}
	return all
}

func TestJobsOnPostgres(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	job := fsm.NewJob("job", func(context.Context, *fsm.JobCall[args]) (int, error) {
		return int(ran.Add(1)), nil
	})
	e := start(t, nil, job)
	e.insert(many(5000, func(i int) fsm.Instance { return job.New(args{i}) })...)
	e.until("all are done", func() bool { return e.count(pg.Done) == 5000 })
	if ran.Load() != 5000 {
		t.Errorf("%d runs", ran.Load())
	}
	if n := e.counts.LargestClaim.Load(); n < 20 {
		t.Errorf("the largest claim had %d rows", n)
	}
	t.Logf("%d claims, the largest of %d rows", e.counts.Claims.Load(), e.counts.LargestClaim.Load())
}

func TestAMachineOnPostgres(t *testing.T) {
	t.Parallel()
	child := fsm.NewJob("child", func(_ context.Context, j *fsm.JobCall[args]) (int, error) {
		if j.Args.N == 0 && j.Attempt == 0 {
			return 0, errors.New("try me again")
		}
		return j.Args.N * 2, nil
	}, fsm.Queue("q"), fsm.Backoff(func(int) time.Duration { return time.Millisecond }))
	type state struct{ Sum, Told int }
	parent := fsm.New[state]("parent")
	parent.Step("fan out", func(_ context.Context, c *fsm.Call[state]) (fsm.Outcome, error) {
		return fsm.ScheduleChildren(many(20, func(i int) fsm.Instance { return child.New(args{i}) })...).Then("join"), nil
	}).Step("join", func(_ context.Context, c *fsm.Call[state]) (fsm.Outcome, error) {
		for _, ch := range c.Children {
			n := 0
			if err := ch.DecodeResult(&n); err != nil {
				return nil, err
			}
			c.State.Sum += n
		}
		return fsm.Await("go").Then("told"), nil
	}).Step("told", func(_ context.Context, c *fsm.Call[state]) (fsm.Outcome, error) {
		for _, s := range c.Awaited {
			if err := s.Decode(&c.State.Told); err != nil {
				return nil, err
			}
		}
		return fsm.Next("end").After(20 * time.Millisecond), nil
	}).Step("end", func(_ context.Context, c *fsm.Call[state]) (fsm.Outcome, error) {
		return fsm.Done(c.State), nil
	})
	e := start(t, nil, child, parent)
	id := e.insert(parent.New(state{}))[0]
	e.until("it waits for the signal", func() bool { return e.get(id).Status == pg.AwaitingSignal })
	if _, err := e.store.Signal(t.Context(), e.host, []pg.Delivery{{ID: id, Name: "go", Payload: []byte(`42`)}}); err != nil {
		t.Fatal(err)
	}
	e.system.Root.Send(e.queue, actors.Poke{Queue: "q"})
	e.until("it is done", func() bool { return e.get(id).Status == pg.Done })
	if got := string(e.get(id).Result); got != `{"Sum": 380, "Told": 42}` {
		t.Errorf("the result is %s", got)
	}
}

func TestASchedulersCrashOnPostgres(t *testing.T) {
	t.Parallel()
	var long, quick atomic.Int64
	goOn := make(chan struct{})
	job := fsm.NewJob("job", func(_ context.Context, j *fsm.JobCall[args]) (int, error) {
		if j.Args.N == 0 {
			long.Add(1)
			<-goOn
			return 1, nil
		}
		quick.Add(1)
		return 0, nil
	})
	e := start(t, func(c *scheduler.Config) { c.Heartbeat = 50 * time.Millisecond }, job)
	id := e.insert(job.New(args{}))[0]
	e.until("the long step runs", func() bool { return long.Load() == 1 })
	e.insert(many(3000, func(i int) fsm.Instance { return job.New(args{i + 1}) })...)
	for i := range 5 {
		e.until("some more are done", func() bool { return quick.Load() > int64(i*500) })
		e.system.Root.Send(e.system.NewLocalPID(e.queue.GetId()+"/"+actors.NameScheduler), actors.Crash{})
	}
	e.until("all the others are done", func() bool { return e.count(pg.Done) == 3000 })
	if in := e.get(id); in.Status != pg.Executing || in.LockedBy != worker || long.Load() != 1 {
		t.Errorf("the long step is %s, owned by %s, ran %d times", in.Status, in.LockedBy, long.Load())
	}
	if quick.Load() != 3000 {
		t.Errorf("%d runs of 3000 jobs: %d rows were found that nobody held", quick.Load(), e.counts.Unheld.Load())
	}
	close(goOn)
	e.until("the long step is done", func() bool { return e.get(id).Status == pg.Done })
	if in := e.get(id); in.Attempt != 0 || long.Load() != 1 {
		t.Errorf("attempt %d, %d runs", in.Attempt, long.Load())
	}
}

// TestLostConnectionsLoseNoRows: whatever connection breaks while it claims or releases, no row has to wait for
// its lease.
func TestLostConnectionsLoseNoRows(t *testing.T) {
	t.Parallel()
	var ran sync.Map
	job := fsm.NewJob("job", func(_ context.Context, j *fsm.JobCall[args]) (int, error) {
		ran.Store(j.Args.N, true)
		return 0, nil
	})
	e := start(t, nil, job)
	const jobs = 4000
	for i := range 20 {
		e.insert(many(jobs/20, func(k int) fsm.Instance { return job.New(args{i*jobs/20 + k}) })...)
		if _, err := e.host.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = (
				SELECT min(application_name) FROM pg_stat_activity WHERE query LIKE '%gendurable:%' AND datname = current_database() AND pid <> pg_backend_pid())`); err != nil {
			t.Fatal(err)
		}
		e.until("it goes on", func() bool { return e.count(pg.Done) > (i-1)*jobs/20 })
	}
	e.until("all are done", func() bool { return e.count(pg.Done) == jobs })
	var retried int
	if err := e.host.QueryRow(t.Context(), `SELECT count(*) FROM gen_durable WHERE attempt > 0`).Scan(&retried); err != nil {
		t.Fatal(err)
	}
	if retried > 0 {
		t.Errorf("%d rows went through their leases", retried)
	}
	t.Logf("%d claims failed, %d rows were found that nobody held", e.counts.ClaimErrors.Load(), e.counts.Unheld.Load())
}

func TestDrainOnPostgres(t *testing.T) {
	t.Parallel()
	running := make(chan int, 100)
	job := fsm.NewJob("job", func(ctx context.Context, j *fsm.JobCall[args]) (int, error) {
		running <- j.Args.N
		<-ctx.Done()
		return 0, context.Cause(ctx)
	})
	e := start(t, nil, job)
	e.insert(many(30, func(i int) fsm.Instance { return job.New(args{i}) })...)
	for range 10 {
		<-running
	}
	e.drain(0)
	var untouched int
	if err := e.host.QueryRow(t.Context(), `SELECT count(*) FROM gen_durable WHERE status = 'runnable' AND attempt = 0 AND locked_by IS NULL`).Scan(&untouched); err != nil {
		t.Fatal(err)
	}
	if untouched != 30 {
		t.Errorf("%d of 30 rows are runnable as before", untouched)
	}
}

// TestAKeyDrainsWithoutPolls: the rows of one concurrency key run one after the other, each as soon as the one
// before it has ended.
func TestAKeyDrainsWithoutPolls(t *testing.T) {
	t.Parallel()
	var running, ran atomic.Int64
	job := fsm.NewJob("job", func(_ context.Context, j *fsm.JobCall[args]) (int, error) {
		if running.Add(1) > 1 {
			t.Error("two rows of one key run at once")
		}
		defer running.Add(-1)
		return int(ran.Add(1)), nil
	}, fsm.ConcurrencyKey("one"))
	e := start(t, func(c *scheduler.Config) { c.PollBusy, c.PollIdle = time.Hour, time.Hour }, job)
	e.insert(many(200, func(i int) fsm.Instance { return job.New(args{i}) })...)
	e.until("all are done", func() bool { return e.count(pg.Done) == 200 })
	t.Logf("%d claims, %d of them empty", e.counts.Claims.Load(), e.counts.EmptyClaims.Load())
}
