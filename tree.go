package gendurable

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/await"
	"github.com/gendurable/gendurable/actors/flusher"
	"github.com/gendurable/gendurable/actors/gc"
	"github.com/gendurable/gendurable/actors/node"
	"github.com/gendurable/gendurable/actors/poke"
	"github.com/gendurable/gendurable/actors/reaper"
	"github.com/gendurable/gendurable/actors/scheduler"
)

// tree is the engine's actors. The root supervises; every child is addressed by its name, so that none
// needs another's birth.
type tree struct {
	system   *actor.ActorSystem
	engine   string
	root     *actor.PID
	counters *actors.Counters
	// queueCounters has one entry a queue; the map itself is read-only.
	queueCounters map[string]*actors.QueueCounters
	queues        []string
	flushers      int
	// gone is closed when the root has ended: nobody answers any more.
	gone chan struct{}
}

// plant spawns the engine's actors.
func (e *Engine) plant() (*tree, error) {
	t := &tree{
		system: e.cfg.ActorSystem, engine: e.cfg.Name, counters: new(actors.Counters),
		queues: e.node.Queues, flushers: len(e.cfg.Flushers), gone: make(chan struct{}),
	}
	t.queueCounters = make(map[string]*actors.QueueCounters)
	for _, q := range t.queues {
		t.queueCounters[q] = new(actors.QueueCounters)
	}
	if t.system == nil {
		t.system = actors.NewSystem(e.log)
	}
	children := e.children(t)
	planted := make(chan error, 1)
	supervision := actors.NewSupervisor(actors.Supervision{Logger: e.log, Counters: t.counters, GiveUp: e.giveUp})
	props := actors.NewProps(e.log, t.counters, func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			switch ctx.Message().(type) {
			case *actor.Started:
				select {
				case planted <- spawn(ctx, children):
				default: // a root that was restarted; nobody waits for that
				}
			case *actor.Stopped:
				close(t.gone)
			}
		})
	}, actor.WithSupervisor(supervision))
	root, err := t.system.Root.SpawnNamed(props, actors.NameRoot(t.engine))
	if errors.Is(err, actor.ErrNameExists) {
		return nil, fmt.Errorf("%w: an engine named %q already runs in this actor system; give this one another Config.Name", ErrInvalid, t.engine)
	}
	if err != nil {
		return nil, fmt.Errorf("gendurable: spawn the engine: %w", err)
	}
	t.root = root
	// What is sent to an actor that does not exist yet is lost.
	if err := <-planted; err != nil {
		t.fell()
		return nil, err
	}
	return t, nil
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
		{actors.NamePoke, poke.Props(poke.Config{Logger: log, Counters: t.counters, Transport: e.transport(t)})},
		{actors.NameAwait, await.Props(await.Config{Logger: log, Counters: t.counters, Rows: store, Interval: cfg.AwaitProbe})},
	}
	for i, f := range cfg.Flushers {
		name := fmt.Sprintf("%s/%s/%d", e.cfg.Name, e.node.Incarnation, i)
		out = append(out, child{actors.NameFlusher(i), flusher.Props(flusher.Config{
			Logger: log, Counters: t.counters, Rows: store, Await: awaitPID, Poke: pokePID,
			Main: store.NewCommitter(name + "/main"), Side: store.NewCommitter(name + "/side"),
			MaxBatch: f.MaxBatch, MaxBytes: f.MaxBytes, Linger: f.Linger,
		})})
	}
	for queue, q := range cfg.Queues {
		out = append(out, child{actors.NameQueue(queue), scheduler.Props(e.queueConfig(t, queue, q))})
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
		child{actors.NameNode, node.Props(node.Config{
			Logger: log, Counters: t.counters, Store: store, Poke: pokePID, Node: e.node, Lease: cfg.Lease,
			Heartbeat: cfg.Heartbeat, Replaced: e.replaced,
		})},
	)
}

// queueConfig describes one queue to its scheduler.
func (e *Engine) queueConfig(t *tree, queue string, q Queue) scheduler.Config {
	cfg := e.cfg
	return scheduler.Config{
		Queue: queue, Worker: e.worker(queue), Store: e.store, Specs: e.registry.spec,
		Flushers: []*actor.PID{t.pid(actors.NameFlusher(cfg.flusherOf(queue)))}, Logger: e.log,
		Concurrency: q.Concurrency, Lease: cfg.Lease, Heartbeat: cfg.Heartbeat, PollBusy: cfg.PollBusy, PollIdle: cfg.PollIdle,
		StepGrace: cfg.StepGrace, Limits: e.limits,
		Counters: t.counters, QueueCounters: t.queueCounters[queue], GiveUp: e.giveUp,
	}
}

// transport is how announcements reach schedulers.
func (e *Engine) transport(t *tree) poke.Transport {
	if e.cfg.Pokes == PokeNone {
		return poke.None()
	}
	return poke.Local(t.system, func(queue string) []*actor.PID {
		if _, here := e.cfg.Queues[queue]; !here {
			return nil
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

func (e *Engine) giveUp(child *actor.PID, reason any) {
	e.fail(fmt.Errorf("gendurable: the actor %s failed too often: %v", child.GetId(), reason))
}

// announce tells the poke actor of runnable work.
func (t *tree) announce(queues []string, in time.Duration) {
	t.system.Root.Send(t.pid(actors.NamePoke), actors.Announce{Queues: queues, In: in})
}

// cancelRequested tells the queue's scheduler, if it is here.
func (t *tree) cancelRequested(queue string, id int64, reason string) {
	t.system.Root.Send(t.pid(actors.NameQueue(queue), actors.NameScheduler), actors.CancelRequested{ID: id, Reason: reason})
}

// await implements waiter.
func (t *tree) await(m actors.AwaitInstance) { t.system.Root.Send(t.pid(actors.NameAwait), m) }

// ended implements waiter.
func (t *tree) ended() <-chan struct{} { return t.gone }

// drain ends the work: first the queues, whose last outcomes the flushers still commit, then the flushers.
func (t *tree) drain(ctx context.Context, timeout time.Duration) error {
	queues := make([]chan struct{}, len(t.queues))
	for i, q := range t.queues {
		queues[i] = make(chan struct{})
		t.system.Root.Send(t.pid(actors.NameQueue(q)), actors.Drain{Timeout: timeout, Done: queues[i]})
	}
	if err := t.waitAll(ctx, queues); err != nil {
		return err
	}
	flushers := make([]chan struct{}, t.flushers)
	for i := range flushers {
		flushers[i] = make(chan struct{})
		t.system.Root.Send(t.pid(actors.NameFlusher(i)), actors.Flush{Timeout: removeTimeout, Done: flushers[i]})
	}
	return t.waitAll(ctx, flushers)
}

func (t *tree) waitAll(ctx context.Context, done []chan struct{}) error {
	for _, d := range done {
		select {
		case <-d:
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
