package gendurable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/await"
	"github.com/gendurable/gendurable/actors/cron"
	"github.com/gendurable/gendurable/actors/flusher"
	"github.com/gendurable/gendurable/actors/gateway"
	"github.com/gendurable/gendurable/actors/gc"
	limits "github.com/gendurable/gendurable/actors/limiter"
	"github.com/gendurable/gendurable/actors/node"
	"github.com/gendurable/gendurable/actors/poke"
	"github.com/gendurable/gendurable/actors/reaper"
	"github.com/gendurable/gendurable/actors/scheduler"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/pg"
)

// tree is the engine's actors. The root supervises; every child is addressed by its name, so that none
// needs another's birth.
type tree struct {
	system   *actor.ActorSystem
	engine   string
	root     *actor.PID
	counters *actors.Counters
	// queueCounters has one entry a queue; the map itself is read-only.
	queueCounters map[string]*laneCounters
	limitCounters *actors.LimitCounters
	inForce       *inForce
	// unfit is what the schedulers leave out of their claims, for the node's row.
	unfit *unfit
	// queues, flushers and the limiter are what a stop waits for.
	queues, flushers, limiter []drained
	losing                    sync.Mutex // held while a drained.lost is closed
	// gone is closed when the root has ended: nobody answers any more.
	gone chan struct{}
}

// drained is an actor that is drained before the engine ends.
type drained struct {
	pid *actor.PID
	// lost is closed when the actor, or one below it, was given up: it may never answer.
	lost chan struct{}
}

// newTree describes the engine's actors. None exists yet.
func newTree(e *Engine) *tree {
	t := &tree{
		system: e.cfg.ActorSystem, engine: e.cfg.Name, counters: new(actors.Counters),
		queueCounters: make(map[string]*laneCounters), limitCounters: new(actors.LimitCounters), inForce: e.inForce, gone: make(chan struct{}),
		unfit: newUnfit(),
	}
	if t.system == nil {
		t.system = actors.NewSystem(e.log)
	}
	t.root = t.pid()
	for _, q := range e.node.Queues {
		t.queueCounters[q] = new(laneCounters)
		t.queues = append(t.queues, drained{pid: t.pid(actors.NameQueue(q)), lost: make(chan struct{})})
	}
	for i := range e.cfg.Flushers {
		t.flushers = append(t.flushers, drained{pid: t.pid(actors.NameFlusher(i)), lost: make(chan struct{})})
	}
	t.limiter = []drained{{pid: t.limiterPID(), lost: make(chan struct{})}}
	return t
}

// spawnAll tells the root to spawn its children, once.
type spawnAll struct {
	actors.Quiet
	reply chan<- error // capacity 1
}

// takeName spawns the root, which has no children yet. It fails if the actor system has an engine of this name.
func (t *tree) takeName(e *Engine) error {
	supervision := actors.NewSupervisor(actors.Supervision{Logger: e.log, Counters: t.counters, GiveUp: e.giveUp})
	props := actors.NewProps(e.log, t.counters, func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			switch m := ctx.Message().(type) {
			case spawnAll:
				m.reply <- spawn(ctx, e.children(t))
			case *actor.Restarting:
				// Its children end with it, and what they know of claimed rows.
				e.fail(errors.New("gendurable: the actor that supervises all others failed"))
			case *actor.Stopped:
				close(t.gone)
				e.fail(errors.New("gendurable: somebody else stopped the engine's actors; use Engine.Stop"))
			}
		})
	}, actor.WithSupervisor(supervision))
	_, err := t.system.Root.SpawnNamed(props, actors.NameRoot(t.engine))
	if errors.Is(err, actor.ErrNameExists) {
		return fmt.Errorf("%w: an engine named %q already runs in this actor system; give this one another Config.Name", ErrInvalid, t.engine)
	}
	if err != nil {
		return fmt.Errorf("gendurable: spawn the engine: %w", err)
	}
	return nil
}

// plant spawns the engine's actors. It returns when they exist: what is sent to an actor before that is lost.
func (t *tree) plant() error {
	planted := make(chan error, 1)
	t.system.Root.Send(t.root, spawnAll{reply: planted})
	select {
	case err := <-planted:
		return err
	case <-t.gone:
		return ErrStopped
	}
}

func spawn(ctx actor.Context, children []child) error {
	for _, c := range children {
		if _, err := ctx.SpawnNamed(c.props, c.name); err != nil {
			return fmt.Errorf("gendurable: spawn %s: %w", c.name, err)
		}
	}
	return nil
}

// child is one actor below the root.
type child struct {
	name  string
	props *actor.Props
}

// pid addresses an actor of this engine.
func (t *tree) pid(names ...string) *actor.PID { return actors.PID(t.system, t.engine, names...) }

// children lists the actors below the root, those first that others send to.
func (e *Engine) children(t *tree) []child {
	cfg, store, log := e.cfg, e.store, e.log
	pokePID, awaitPID := t.pid(actors.NamePoke), t.pid(actors.NameAwait)
	out := []child{
		{actors.NamePoke, poke.Props(e.pokeConfig(t))},
		{actors.NameLimiter, limits.Props(e.limiterConfig(t))},
		{actors.NameAwait, await.Props(await.Config{Logger: log, Counters: t.counters, Rows: store, Interval: cfg.AwaitProbe})},
	}
	for i, f := range cfg.Flushers {
		name := fmt.Sprintf("%s/%s/%d", e.cfg.Name, e.node.Incarnation, i)
		out = append(out, child{actors.NameFlusher(i), flusher.Props(flusher.Config{
			Logger: log, Counters: t.counters, Rows: store, Await: awaitPID, Poke: pokePID, Limiter: t.limiterPID(),
			Main: store.NewCommitter(name + "/main"), Side: store.NewCommitter(name + "/side"),
			MaxBatch: f.MaxBatch, MaxBytes: f.MaxBytes, Linger: f.Linger, Telemetry: e.reports(),
		})})
	}
	for queue, q := range cfg.Queues {
		out = append(out, child{actors.NameQueue(queue), e.queueProps(t, queue, q)})
	}
	if cfg.Cluster != nil {
		out = append(out, child{cluster.NamePlacer, cluster.Placer(e.placerConfig(t))})
	}
	out = append(out, child{actors.NameGateway, gateway.Props(e.gatewayConfig(t))})
	if cfg.Role == cluster.RoleInsertOnly { // others sweep
		return append(out, e.nodeChild(t))
	}
	if len(cfg.Crons) > 0 {
		out = append(out, child{actors.NameCron, cron.Props(e.cronConfig(t))})
	}
	return append(out,
		child{actors.NameReaper, reaper.Props(reaper.Config{
			Logger: log, Counters: t.counters, Store: store, Poke: pokePID, LeaseEvery: cfg.LeaseSweep,
			DeadlineEvery: cfg.DeadlineSweep, Heartbeat: cfg.Heartbeat, Batch: cfg.SweepBatch,
		})},
		child{actors.NameGC, gc.Props(gc.Config{
			Logger: log, Counters: t.counters, Store: store, Every: cfg.GCInterval, Batch: cfg.SweepBatch,
			DoneAfter: cfg.RetainDone, FailedAfter: cfg.RetainFailed, LookEvery: vacuumEvery(cfg.DisableVacuum),
		})},
		e.nodeChild(t),
	)
}

func (e *Engine) nodeChild(t *tree) child {
	return child{actors.NameNode, node.Props(node.Config{
		Logger: e.log, Counters: t.counters, Store: e.store, Poke: t.pid(actors.NamePoke), Node: e.node, Lease: e.cfg.Lease,
		Heartbeat: e.cfg.Heartbeat, Replaced: e.replaced, Unfit: t.unfit.list, Paused: t.paused,
	})}
}

// laneConfig describes one lane of a queue to its scheduler; lane is its name in claims.
func (e *Engine) laneConfig(t *tree, queue, lane string, q Queue) scheduler.Config {
	cfg := e.cfg
	return scheduler.Config{
		Queue: queue, Worker: e.worker(lane), Store: e.store, Specs: e.registry.spec,
		Flushers: []*actor.PID{t.pid(actors.NameFlusher(cfg.flusherOf(queue)))}, Logger: e.log,
		Limiter: t.limiterPID(), Gates: t.inForce.gates(), CountedElsewhere: cfg.Limiter != nil,
		Concurrency: q.Concurrency, Lease: cfg.Lease, Heartbeat: cfg.Heartbeat, PollBusy: cfg.PollBusy, PollIdle: cfg.PollIdle,
		StepGrace: cfg.StepGrace, Together: e.commitTogether, InlineLimit: cfg.InlineLimit, Limits: e.limits,
		Counters: t.counters, QueueCounters: t.queueCounters[queue].of(lane), GiveUp: e.giveUp, Telemetry: e.reports(),
		LeftOut: func(steps []pg.StepRef) { t.unfit.set(lane, steps) },
	}
}

// pokeConfig describes the poke actor.
func (e *Engine) pokeConfig(t *tree) poke.Config {
	c := poke.Config{Logger: e.log, Counters: t.counters, Transport: e.transport(t), Queues: e.node.Queues}
	switch {
	case e.notices != nil:
		c.Network = e.notices
		c.Told = func(n pg.Notice) { t.noticed(n, "") } // the database knows the reason
	case e.cfg.Pokes == PokeCluster:
		c.Network = cluster.NewPokes(t.system, e.cfg.Name, e.directory)
	}
	return c
}

// transport is how announcements reach this process's schedulers.
func (e *Engine) transport(t *tree) poke.Transport {
	if e.cfg.Pokes == PokeNone {
		return poke.None()
	}
	return poke.Local(t.system, func(queue string) []*actor.PID {
		q, here := e.cfg.Queues[queue]
		switch {
		case !here:
			return nil
		case e.hasLanes(q): // it hands them on to those that are here
			return []*actor.PID{t.pid(actors.NameQueue(queue))}
		}
		return []*actor.PID{t.pid(actors.NameQueue(queue), actors.NameScheduler)}
	})
}

// vacuumEvery is the gc's interval between looks at dead rows; 0 = its default.
func vacuumEvery(disabled bool) time.Duration {
	if disabled {
		return -1
	}
	return 0
}

func (e *Engine) replaced(by string) {
	e.fail(fmt.Errorf("%w: %q was started again as incarnation %s", ErrReplaced, e.node.Name, by))
}

// giveUp takes the end of an actor that keeps failing. Called once an actor, on a goroutine of its own.
func (e *Engine) giveUp(child *actor.PID, reason any) {
	e.tree.lose(child)
	e.fail(fmt.Errorf("gendurable: the actor %s failed too often: %v", child.GetId(), reason))
}

// announce tells the poke actor of runnable work.
func (t *tree) announce(queues []string, in time.Duration) {
	t.system.Root.Send(t.pid(actors.NamePoke), actors.Announce{Queues: queues, In: in})
}

// await implements waiter.
func (t *tree) await(m actors.AwaitInstance) { t.system.Root.Send(t.pid(actors.NameAwait), m) }

// ended implements waiter.
func (t *tree) ended() <-chan struct{} { return t.gone }

// lose notes that an actor is no more.
func (t *tree) lose(child *actor.PID) {
	for _, d := range slices.Concat(t.queues, t.flushers, t.limiter) {
		if id := d.pid.GetId(); child.GetId() == id || strings.HasPrefix(child.GetId(), id+"/") {
			t.losing.Lock()
			select {
			case <-d.lost:
			default:
				close(d.lost)
			}
			t.losing.Unlock()
		}
	}
}

// drain ends the work: first the queues, whose last outcomes the flushers still commit, then the flushers, whose commits
// give slots back, then the limiter. It waits for each, but not for actors that were given up.
func (t *tree) drain(ctx context.Context, timeout time.Duration) error {
	err := t.drainAll(ctx, t.queues, func(done chan<- struct{}) any { return actors.Drain{Timeout: timeout, Done: done} })
	if err != nil {
		return err
	}
	flush := func(done chan<- struct{}) any { return actors.Flush{Timeout: removeTimeout, Done: done} }
	if err := t.drainAll(ctx, t.flushers, flush); err != nil {
		return err
	}
	return t.drainAll(ctx, t.limiter, flush)
}

func (t *tree) drainAll(ctx context.Context, list []drained, message func(done chan<- struct{}) any) error {
	done := make([]chan struct{}, len(list))
	for i, d := range list {
		done[i] = make(chan struct{})
		t.system.Root.Send(d.pid, message(done[i]))
	}
	for i, d := range list {
		select {
		case <-done[i]:
		case <-d.lost:
		case <-t.gone:
			return ErrStopped
		case <-ctx.Done():
			return fmt.Errorf("gendurable: stop: the drain was cut short: %w", context.Cause(ctx))
		}
	}
	return nil
}

// fell stops all actors and waits for them, but not for ever: a step that ignores its context must not keep
// a process from ending.
func (t *tree) fell() {
	t.system.Root.Stop(t.root)
	select {
	case <-t.gone:
	case <-time.After(removeTimeout):
	}
}
