package await

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/goleak"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rows is a fake database. A look takes a snapshot, then is held if there is a gate.
type rows struct {
	mu     sync.Mutex
	status map[int64]pg.Status
	looks  int
	fail   int
	begun  chan []int64  // each look, when there is room
	pass   chan struct{} // a token for each look; nil = none needed
}

func newRows() *rows {
	return &rows{status: map[int64]pg.Status{}, begun: make(chan []int64, 10_000)}
}

func (r *rows) Settled(ctx context.Context, ids []int64) ([]pg.Settled, error) {
	r.mu.Lock()
	r.looks++
	var list []pg.Settled
	for _, id := range ids {
		list = append(list, pg.Settled{ID: id, Status: r.status[id]})
	}
	var err error
	if r.fail > 0 {
		r.fail--
		err = errors.New("database is away")
	}
	r.mu.Unlock()
	select {
	case r.begun <- slices.Clone(ids):
	default:
	}
	if r.pass != nil {
		select {
		case <-r.pass:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return list, err
}

func (r *rows) set(id int64, s pg.Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status[id] = s
}

func (r *rows) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.looks
}

type bench struct {
	t        *testing.T
	system   *actor.ActorSystem
	pid      *actor.PID
	counters *actors.Counters
}

func start(t *testing.T, r Rows, every time.Duration) *bench {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	b := &bench{t: t, system: actors.NewSystem(log), counters: new(actors.Counters)}
	child := Props(Config{Logger: log, Counters: b.counters, Rows: r, Interval: every, MaxInterval: 2 * every})
	spawned := make(chan *actor.PID, 1)
	parent := b.system.Root.Spawn(actors.NewProps(log, nil, func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			if _, ok := ctx.Message().(*actor.Started); ok {
				spawned <- ctx.Spawn(child)
			}
		})
	}, actor.WithSupervisor(actors.NewSupervisor(actors.Supervision{First: time.Millisecond, Logger: log}))))
	b.pid = <-spawned
	t.Cleanup(func() {
		if err := b.system.Root.StopFuture(parent).Wait(); err != nil {
			t.Errorf("stop: %v", err)
		}
		if n := b.counters.AwaitingNow.Load(); n != 0 {
			t.Errorf("%d are counted as waiting after the stop", n)
		}
	})
	return b
}

func (b *bench) await(id int64, terminal bool, done <-chan struct{}) chan actors.AwaitReply {
	reply := make(chan actors.AwaitReply, 1)
	b.system.Root.Send(b.pid, actors.AwaitInstance{ID: id, UntilTerminal: terminal, Done: done, Reply: reply})
	return reply
}

func wait1[T any](t *testing.T, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(time.Minute):
		t.Fatal("timed out")
		panic("unreachable")
	}
}

func (b *bench) want(ch <-chan actors.AwaitReply, s pg.Status) {
	b.t.Helper()
	if got := wait1(b.t, ch); got.Err != nil || got.Settled.Status != s {
		b.t.Errorf("got %+v, want %q", got, s)
	}
}

func (b *bench) eventually(what string, ok func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(deadline) {
			b.t.Fatalf("timed out waiting for %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestTheFirstLookIsAtOnceAndLaterOnesByTick(t *testing.T) {
	t.Parallel()
	r := newRows()
	r.set(1, pg.Done)
	r.set(2, pg.Runnable)
	b := start(t, r, time.Hour)
	b.want(b.await(1, false, nil), pg.Done)
	b.want(b.await(3, false, nil), "") // no such instance
	if n := b.counters.AwaitProbes.Load(); n > 2 {
		t.Errorf("%d looks", n)
	}
	ticking := start(t, r, time.Millisecond)
	reply := ticking.await(2, false, nil)
	for range 3 {
		wait1(t, r.begun)
	}
	r.set(2, pg.Failed)
	ticking.want(reply, pg.Failed)
}

func TestManyWaitersShareALook(t *testing.T) {
	t.Parallel()
	r := newRows()
	r.pass = make(chan struct{}, 100)
	b := start(t, r, time.Hour)
	r.set(0, pg.Done)
	first := b.await(0, false, nil)
	wait1(t, r.begun)
	var replies []chan actors.AwaitReply
	for id := int64(1); id <= 50; id++ {
		r.set(id, pg.Done)
		replies = append(replies, b.await(id, false, nil))
	}
	b.eventually("all to be registered", func() bool { return b.counters.AwaitingNow.Load() == 51 })
	close(r.pass)
	b.want(first, pg.Done)
	if ids := wait1(t, r.begun); len(ids) != 50 {
		t.Errorf("the second look asks for %d, want 50", len(ids))
	}
	for _, ch := range replies {
		b.want(ch, pg.Done)
	}
}

func TestParkedCountsUnlessUntilTerminal(t *testing.T) {
	t.Parallel()
	r := newRows()
	r.set(1, pg.AwaitingSignal)
	r.set(2, pg.AwaitingChildren)
	b := start(t, r, time.Millisecond)
	b.want(b.await(1, false, nil), pg.AwaitingSignal)
	terminal := b.await(1, true, nil)
	children := b.await(2, false, nil)
	for range 5 {
		wait1(t, r.begun)
	}
	if len(terminal)+len(children) > 0 {
		t.Error("answered although not settled")
	}
	r.set(1, pg.Done)
	r.set(2, pg.Done)
	b.want(terminal, pg.Done)
	b.want(children, pg.Done)
}

func TestLocalCommitsAreAnsweredWithoutATick(t *testing.T) {
	t.Parallel()
	r := newRows()
	r.set(1, pg.Executing)
	r.set(2, pg.Executing)
	b := start(t, r, time.Hour)
	ended, parked := b.await(1, false, nil), b.await(2, false, nil)
	b.eventually("the first looks", func() bool { return b.counters.AwaitingNow.Load() == 2 && r.count() > 0 })
	r.set(2, pg.AwaitingSignal)
	b.system.Root.Send(b.pid, actors.Settlements{Settled: []pg.Settled{
		{ID: 1, Status: pg.Done}, {ID: 2, Status: pg.AwaitingSignal}, {ID: 3, Status: pg.Done},
	}})
	b.want(ended, pg.Done)
	b.want(parked, pg.AwaitingSignal)
	if n := b.counters.AwaitPushed.Load(); n != 1 {
		t.Errorf("pushed %d", n)
	}
}

// A caller that signals a parked instance and then waits must not be told that it is parked.
func TestALookOlderThanTheCallerDoesNotAnswerIt(t *testing.T) {
	t.Parallel()
	r := newRows()
	r.pass = make(chan struct{}, 100)
	r.set(1, pg.AwaitingSignal)
	b := start(t, r, time.Hour)
	early := b.await(1, false, nil)
	wait1(t, r.begun)
	r.set(1, pg.Executing)
	late := b.await(1, false, nil)
	b.system.Root.Send(b.pid, actors.Settlements{Settled: []pg.Settled{{ID: 1, Status: pg.AwaitingSignal}}})
	b.eventually("the second caller", func() bool { return b.counters.AwaitingNow.Load() == 2 })
	r.pass <- struct{}{}
	b.want(early, pg.AwaitingSignal)
	wait1(t, r.begun)
	r.pass <- struct{}{}
	if len(late) > 0 {
		t.Errorf("got %+v", <-late)
	}
	b.system.Root.Send(b.pid, actors.Settlements{Settled: []pg.Settled{{ID: 1, Status: pg.Done}}})
	b.want(late, pg.Done)
}

func TestNobodyWaitsNobodyAsks(t *testing.T) {
	t.Parallel()
	r := newRows()
	r.set(1, pg.Executing)
	b := start(t, r, time.Millisecond)
	done := make(chan struct{})
	b.await(1, false, done)
	wait1(t, r.begun)
	close(done)
	b.eventually("the caller to be forgotten", func() bool { return b.counters.AwaitingNow.Load() == 0 })
	// A look that was on its way may still be counted; after a later caller's there is none.
	r.set(2, pg.Done)
	b.want(b.await(2, false, nil), pg.Done)
	n := r.count()
	b.want(b.await(2, false, nil), pg.Done)
	if got := r.count(); got != n+1 {
		t.Errorf("%d looks for one caller", got-n)
	}
}

func TestErrorsAreOnlyADelay(t *testing.T) {
	t.Parallel()
	r := newRows()
	r.set(1, pg.Done)
	r.fail = 5
	b := start(t, r, time.Millisecond)
	b.want(b.await(1, false, nil), pg.Done)
	if n := r.count(); n != 6 {
		t.Errorf("%d looks, want 6", n)
	}
}

func TestStopAndRestartAnswerEverybody(t *testing.T) {
	t.Parallel()
	r := newRows()
	r.set(1, pg.Executing)
	b := start(t, r, time.Hour)
	first := b.await(1, false, nil)
	wait1(t, r.begun)
	b.system.Root.Send(b.pid, actors.Crash{})
	if got := wait1(t, first); !errors.Is(got.Err, actors.ErrRestarting) {
		t.Errorf("got %+v", got)
	}
	second := b.await(1, false, nil)
	wait1(t, r.begun)
	if err := b.system.Root.StopFuture(b.pid).Wait(); err != nil {
		t.Fatal(err)
	}
	if got := wait1(t, second); !errors.Is(got.Err, actors.ErrStopped) {
		t.Errorf("got %+v", got)
	}
}

// dead is a database whose first connection is silently dead: nothing comes back on it.
type dead struct {
	*rows
	first sync.Once
}

func (d *dead) Settled(ctx context.Context, ids []int64) (s []pg.Settled, err error) {
	died := false
	d.first.Do(func() { died = true })
	if died {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return d.rows.Settled(ctx, ids)
}

func TestALookOnADeadConnectionIsGivenUp(t *testing.T) {
	t.Parallel()
	r := &dead{rows: newRows()}
	r.set(1, pg.Done)
	log := slog.New(slog.DiscardHandler)
	system := actors.NewSystem(log)
	pid := system.Root.Spawn(Props(Config{Logger: log, Rows: r, Interval: time.Millisecond, Timeout: 20 * time.Millisecond}))
	b := &bench{t: t, system: system, pid: pid}
	b.want(b.await(1, false, nil), pg.Done)
	if err := system.Root.StopFuture(pid).Wait(); err != nil {
		t.Errorf("stop: %v", err)
	}
}
