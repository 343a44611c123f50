package scheduler

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// queue is the supervisor of one queue.
type queue struct {
	cfg       *Config
	life      *life
	scheduler *actor.PID
	steps     *actor.PID
}

func (q *queue) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started:
		q.start(ctx)
	case *actor.Stopping:
		q.life.end()
		q.life.goroutines.close()
	case *actor.Stopped:
		q.life.over() // whoever waits for a drain waits for nothing more
	case actors.Drain:
		// Kept here as well: the scheduler that takes the message may fail before it has acted on it.
		q.life.drain(m, time.Now())
		ctx.Send(q.scheduler, m)
	case actors.LimitsInForce:
		// Kept here as well, for the steps of inline chains and for a scheduler that starts later.
		q.life.setGates(m.Config.GateNames())
		ctx.Send(q.scheduler, m)
	case actors.Poke, actors.CancelRequested, actors.CancelsRequested, actors.SlotsFreed, actors.QueuePaused:
		ctx.Send(q.scheduler, m)
	case actors.Crash:
		panic("told to crash")
	}
}

func (q *queue) start(ctx actor.Context) {
	spawn := func(name string, producer func() actor.Actor, opts ...actor.PropsOption) *actor.PID {
		opts = append(opts, actor.WithDispatcher(&q.life.goroutines))
		pid, err := ctx.SpawnNamed(actors.NewProps(q.cfg.Logger, q.cfg.Counters, producer, opts...), name)
		if err != nil {
			panic(fmt.Errorf("gendurable: queue %q: start its %s: %w", q.cfg.Queue, name, err))
		}
		return pid
	}
	scheduler := ctx.ActorSystem().NewLocalPID(ctx.Self().GetId() + "/" + actors.NameScheduler)
	// A step actor is never restarted: what it ran is settled by the steps actor, and the next run gets a new one.
	stop := actor.NewOneForOneStrategy(0, 0, func(any) actor.Directive { return actor.StopDirective })
	q.steps = spawn(actors.NameSteps, func() actor.Actor {
		return newSteps(q.cfg, q.life, scheduler)
	}, actor.WithSupervisor(stop))
	steps := q.steps
	q.scheduler = spawn(actors.NameScheduler, func() actor.Actor {
		return newScheduler(q.cfg, q.life, steps)
	})
}

// life is what outlives the restarts of a queue's actors.
type life struct {
	// ctx is that of every call to the database. A restart does not end it: a call that was given up half-way
	// would leave open what it did.
	ctx context.Context
	end context.CancelFunc

	goroutines goroutines

	// draining is set once the queue is to end. The steps of inline chains read it.
	draining atomic.Bool
	// patience is how long a claim that looks at everything may take, if that is more than other calls may. In ns.
	patience atomic.Int64
	// paused is set while the queue is known to be paused. The steps of inline chains read it.
	paused atomic.Bool
	// tight is set while slots are in demand; handed are the rows that have given up theirs before their end, and returning those
	// that want one again.
	tight     atomic.Bool
	brisk     atomic.Bool // chains should give up their slots for commits
	handed    gathering[core.HandedRow]
	returning gathering[core.ReturningRow]
	// commitTook is how long the last outcome waited for its flusher's answer, in ns.
	commitTook atomic.Int64

	// gates are the names of the gates in force; the steps of inline chains read them. Invariant: the map is not changed.
	gates atomic.Pointer[map[string]bool]

	schedulers atomic.Int64 // incarnations so far
	looking    atomic.Int64 // the one whose look at what is unheld is on its way; 0 = none is
	steps      atomic.Int64

	mu      sync.Mutex
	until   time.Time
	drained bool
	waiting []chan<- struct{}
	// undecodable are the steps whose states were found not to fit here, and when that was logged. Invariant: at most
	// maxUndecodable.
	undecodable map[pg.StepRef]time.Time
}

const (
	maxUndecodable = 1000
	// undecodableAgain is when to log once more that states of a step do not fit.
	undecodableAgain = 10 * time.Minute
)

func newLife(gates []string) *life {
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{ctx: ctx, end: cancel, undecodable: map[pg.StepRef]time.Time{}}
	l.setGates(gates)
	return l
}

func (l *life) setGates(names []string) {
	gates := make(map[string]bool, len(names))
	for _, n := range names {
		gates[n] = true
	}
	l.gates.Store(&gates)
}

// gated reports whether a key belongs to a gate in force.
func (l *life) gated(key string) bool { return (*l.gates.Load())[limiter.NameOf(key)] }

// drain notes that the queue is to end; the earliest end counts.
func (l *life) drain(d actors.Drain, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	until := now.Add(max(0, d.Timeout))
	if !l.draining.Load() || until.Before(l.until) {
		l.until = until
	}
	l.draining.Store(true)
	switch {
	case d.Done == nil:
	case l.drained:
		close(d.Done)
	default:
		l.waiting = append(l.waiting, d.Done)
	}
}

// drainTime is how long running steps still have, if the queue is to end.
func (l *life) drainTime(now time.Time) (left time.Duration, draining bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, l.until.Sub(now)), l.draining.Load()
}

// over tells those who asked for the drain that it has ended.
func (l *life) over() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drained = true
	for _, done := range l.waiting {
		close(done)
	}
	l.waiting = nil
}

// sayUndecodable is true when it is asked of a step for the first time in a while: the step is tried again and again.
func (l *life) sayUndecodable(s pg.StepRef, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	said, known := l.undecodable[s]
	if known && now.Sub(said) < undecodableAgain || !known && len(l.undecodable) == maxUndecodable {
		return false
	}
	l.undecodable[s] = now
	return true
}
