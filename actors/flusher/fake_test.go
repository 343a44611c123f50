package flusher

import (
	"context"
	"errors"
	"fmt"
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

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/gendurable/gendurable/internal/devpg.supervise"))
}

var (
	errContent  = errors.New("content")
	errLocked   = errors.New("locked")
	errCollided = errors.New("collided")
	errAway     = errors.New("away")
)

func classifyFake(err error) Fault {
	for e, f := range map[error]Fault{errContent: Content, errLocked: Locked, errCollided: Collided, errAway: Away} {
		if errors.Is(err, e) {
			return f
		}
	}
	return Unknown
}

// database is a fake for both committers and the look at locked rows.
type database struct {
	mu      sync.Mutex
	flushes [][]int64 // ids of each committed flush, in order
	tries   [][]int64 // of all
	poison  map[int64]bool
	locked  map[int64]bool
	hidden  map[int64]bool // wait for a lock that no row shows
	fail    func(try int) error
	onFlush func(ids []int64) // called without the lock
	looks   int               // at what next steps see
	blind   func(look int) error
}

func newDatabase() *database {
	return &database{poison: map[int64]bool{}, locked: map[int64]bool{}, hidden: map[int64]bool{}}
}

func (d *database) Flush(ctx context.Context, outcomes []pg.Outcome) (pg.Flushed, error) {
	ids := make([]int64, len(outcomes))
	for i := range outcomes {
		ids[i] = outcomes[i].ID
	}
	if d.onFlush != nil {
		d.onFlush(ids)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tries = append(d.tries, ids)
	if ctx.Err() != nil {
		return pg.Flushed{}, ctx.Err()
	}
	if d.fail != nil {
		if err := d.fail(len(d.tries)); err != nil {
			return pg.Flushed{}, err
		}
	}
	var f pg.Flushed
	for i := range outcomes {
		o := &outcomes[i]
		if d.poison[o.ID] {
			return pg.Flushed{}, fmt.Errorf("flush: %w", errContent)
		}
		blocked := d.hidden[o.ID]
		touched(o, func(id int64) { blocked = blocked || d.locked[id] })
		if blocked {
			return pg.Flushed{}, fmt.Errorf("flush: %w", errLocked)
		}
		v := pg.Verdict{ID: o.ID, Status: pg.Runnable}
		if o.Kind == pg.KindDone {
			v.Status = pg.Done
		}
		if o.Kind == pg.KindContinue {
			v.Status, v.HasInbox = pg.Executing, o.HasInbox
		}
		f.Verdicts = append(f.Verdicts, v)
	}
	d.flushes = append(d.flushes, ids)
	f.Woken = []string{"q"}
	return f, nil
}

func (d *database) Blocked(_ context.Context, ids []int64) (blocked []int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		if d.locked[id] {
			blocked = append(blocked, id)
		}
	}
	return blocked, nil
}

// Enrich hands each row one signal.
func (d *database) Enrich(_ context.Context, rows []pg.Claimed) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looks++
	if d.blind != nil {
		if err := d.blind(d.looks); err != nil {
			return err
		}
	}
	for i := range rows {
		rows[i].Inbox = []pg.Signal{{ID: 10 * rows[i].ID}}
	}
	return nil
}

func (d *database) set(m map[int64]bool, id int64, on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m[id] = on
}

func (d *database) committed() [][]int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.flushes)
}

// bench is a flusher over a fake database in an actor system of its own.
type bench struct {
	t      *testing.T
	system *actor.ActorSystem
	pid    *actor.PID
	c      *actors.Counters
	db     *database
	w      *writer
}

// panics makes the flusher under test panic before it handles the message it carries.
type panics struct{ actors.Quiet }

// barrier is answered once what was sent before it was handled.
type barrier struct {
	actors.Quiet
	done chan struct{}
}

type bomb struct{ *flusher }

func (b bomb) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case panics:
		panic("told to")
	case barrier:
		close(m.done)
	default:
		b.flusher.Receive(ctx)
	}
}

func (b *bench) sync() {
	done := make(chan struct{})
	b.system.Root.Send(b.pid, barrier{done: done})
	wait1(b.t, done)
}

func start(t *testing.T, db *database, change func(*Config)) *bench {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	b := &bench{t: t, system: actors.NewSystem(log), c: new(actors.Counters), db: db}
	c := Config{Logger: log, Counters: b.c, Main: db, Side: db, Rows: db, Classify: classifyFake,
		Backoff: time.Millisecond, MaxBackoff: time.Millisecond, SlowBackoff: time.Millisecond, MaxSlowBackoff: 2 * time.Millisecond}
	if change != nil {
		change(&c)
	}
	b.spawn(c)
	return b
}

// spawn starts the flusher under a supervisor.
func (b *bench) spawn(c Config) {
	c = c.withDefaults()
	b.w = newWriter(c)
	child := actors.NewProps(c.Logger, c.Counters, func() actor.Actor { return bomb{newFlusher(b.w)} })
	spawned := make(chan *actor.PID, 1)
	parent := b.system.Root.Spawn(actors.NewProps(c.Logger, nil, func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			if _, ok := ctx.Message().(*actor.Started); ok {
				spawned <- ctx.Spawn(child)
			}
		})
	}, actor.WithSupervisor(actors.NewSupervisor(actors.Supervision{First: time.Millisecond, Logger: c.Logger}))))
	b.pid = <-spawned
	b.t.Cleanup(func() {
		if err := b.system.Root.StopFuture(parent).Wait(); err != nil {
			b.t.Errorf("stop: %v", err)
		}
	})
}

func (b *bench) commit(o pg.Outcome, gone <-chan struct{}) chan actors.Committed {
	reply := make(chan actors.Committed, 1)
	b.system.Root.Send(b.pid, actors.Commit{Outcome: o, Queue: "q", Gone: gone, Reply: reply})
	return reply
}

func (b *bench) ids(ids ...int64) map[int64]chan actors.Committed {
	m := make(map[int64]chan actors.Committed)
	for _, id := range ids {
		m[id] = b.commit(pg.Outcome{ID: id}, nil)
	}
	return m
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

func (b *bench) mustCommit(replies map[int64]chan actors.Committed) {
	b.t.Helper()
	for id, r := range replies {
		if got := wait1(b.t, r); got.Err != nil || got.Verdict.ID != id {
			b.t.Errorf("%d: got %+v", id, got)
		}
	}
}

func seq(from, to int64) (ids []int64) {
	for id := from; id < to; id++ {
		ids = append(ids, id)
	}
	return ids
}

// gate lets the test hold flushes: each sends on entered and waits for a token.
func gate(db *database) (entered chan []int64, pass chan struct{}) {
	entered, pass = make(chan []int64, 100), make(chan struct{}, 100)
	db.onFlush = func(ids []int64) {
		entered <- ids
		<-pass
	}
	return entered, pass
}
