package gendurable_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// ended waits for the engine's end.
func ended(t *testing.T, engine *gendurable.Engine) {
	t.Helper()
	select {
	case <-engine.Done():
	case <-time.After(patience):
		t.Fatal("the engine goes on")
	}
}

func TestEnginesInTheHostsActorSystem(t *testing.T) {
	t.Parallel()
	pool := database(t)
	system := actors.NewSystem(quietly())
	cfg := gendurable.Config{Machines: []fsm.Definition{double}, ActorSystem: system, Logger: quietly(), NodeName: "n"}
	for range 5 { // again under the same name, as soon as the last one has stopped
		one, other := cfg, cfg
		one.Name, other.Name = "one", "other"
		engines := []*gendurable.Engine{start(t, pool, one), start(t, pool, other)}
		for i, engine := range engines {
			if s := await(t, engine, insert(t, engine, double.New(number{i}))); !s.Done() {
				t.Errorf("%+v", s)
			}
		}
		stop(t, engines[0])
		if s := await(t, engines[1], insert(t, engines[1], double.New(number{3}))); !s.Done() {
			t.Errorf("%+v", s)
		}
		stop(t, engines[1])
	}
	for _, processes := range system.ProcessRegistry.LocalPIDs.LocalPIDs {
		for _, id := range processes.Keys() {
			if strings.HasPrefix(id, "gendurable/") {
				t.Errorf("the actor %s is left", id)
			}
		}
	}
}

// A start that cannot be must not declare the engine dead that it collides with.
func TestSecondStartInOneActorSystemHarmsNobody(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	slow := g.machine("slow")
	cfg := gendurable.Config{
		NodeName: "n", ActorSystem: actors.NewSystem(quietly()), Machines: []fsm.Definition{slow}, Logger: quietly(),
		Lease: time.Hour, Heartbeat: 50 * time.Millisecond,
	}
	engine := start(t, pool, cfg)
	id := insert(t, engine, slow.New(number{6}))
	<-g.entered
	beat := `SELECT coalesce(max(extract(epoch FROM beat) * 1000), 0)::bigint FROM gen_durable_nodes`
	if _, err := gendurable.Start(t.Context(), pool, cfg); !errors.Is(err, gendurable.ErrInvalid) {
		t.Fatalf("the second start: %v", err)
	}
	before := count(t, pool, beat)
	eventually(t, "the first engine beats or ends", func() bool {
		return engine.Err() != nil || count(t, pool, beat) > before
	})
	close(g.open)
	if s := await(t, engine, id); string(s.Result) != "6" || g.runs.Load() != 1 || engine.Err() != nil {
		t.Errorf("the first engine's step: %+v after %d runs; the engine: %v", s, g.runs.Load(), engine.Err())
	}
}

// deaf is a machine whose step ignores its context until it is let on.
func deaf(entered, cancelled chan<- struct{}, open <-chan struct{}) *fsm.Machine[number] {
	return fsm.New[number]("deaf").Step("work", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
		entered <- struct{}{}
		<-ctx.Done()
		cancelled <- struct{}{}
		<-open
		return fsm.Done(c.State.N), nil
	})
}

func TestStopObeysTheContextOfEachCaller(t *testing.T) {
	t.Parallel()
	entered, cancelled, open := make(chan struct{}, 10), make(chan struct{}, 10), make(chan struct{})
	defer close(open)
	m := deaf(entered, cancelled, open)
	engine := start(t, database(t), gendurable.Config{Machines: []fsm.Definition{m}, DrainTimeout: time.Millisecond, Logger: quietly()})
	insert(t, engine, m.New(number{}))
	<-entered
	first := make(chan error, 1)
	go func() { first <- engine.Stop(context.WithoutCancel(t.Context())) }()
	<-cancelled // so the first is draining, and gives the step some time to return
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if err := engine.Stop(impatient); !errors.Is(err, context.Canceled) {
		t.Errorf("the second caller: %v", err)
	}
	select {
	case <-engine.Done():
		t.Error("the second caller waited for the first")
	default:
	}
	if err := <-first; err != nil {
		t.Errorf("the first caller: %v", err)
	}
}

func TestStopEndsThoughAQueueIsGivenUpMeanwhile(t *testing.T) {
	t.Parallel()
	g := newGate()
	slow := g.machine("slow")
	engine := start(t, database(t), gendurable.Config{Machines: []fsm.Definition{slow}, DrainTimeout: time.Hour, Logger: quietly()})
	insert(t, engine, slow.New(number{}))
	<-g.entered
	go func() { _ = engine.Stop(context.WithoutCancel(t.Context())) }()
	eventually(t, "the end", func() bool {
		engine.Crash(actors.NameQueue("default"), actors.NameScheduler)
		select {
		case <-engine.Done():
			return true
		default:
			return false
		}
	})
}

func TestWithoutItsRootActorTheEngineEnds(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(*gendurable.Engine, *actor.ActorSystem){
		"crashed":                func(e *gendurable.Engine, _ *actor.ActorSystem) { e.Crash() },
		"stopped by the host":    func(_ *gendurable.Engine, s *actor.ActorSystem) { s.Root.Stop(actors.PID(s, "e")) },
		"poisoned by a stranger": func(_ *gendurable.Engine, s *actor.ActorSystem) { s.Root.Poison(actors.PID(s, "e")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			system := actors.NewSystem(quietly())
			engine := start(t, database(t), gendurable.Config{
				Name: "e", Machines: []fsm.Definition{double}, ActorSystem: system, Logger: quietly(),
			})
			harm(engine, system)
			ended(t, engine)
			if engine.Err() == nil {
				t.Error("the engine does not say why it ended")
			}
		})
	}
}

func TestAnEngineThatGivesUpGivesItsRowsBack(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	slow := g.machine("slow")
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{slow}, Lease: time.Hour, Logger: quietly()})
	for i := range 30 {
		insert(t, engine, slow.New(number{i}))
	}
	<-g.entered
	eventually(t, "the engine gives up", func() bool {
		engine.Crash(actors.NameReaper)
		return engine.Err() != nil
	})
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'runnable' AND attempt = 0`); n != 30 {
		t.Errorf("%d of 30 rows are runnable and untouched; the others wait for a lease", n)
	}
}

// What a stop leaves to the lease, the next start under the NodeName takes back at once.
func TestNextStartTakesOverWhatAStopLeft(t *testing.T) {
	t.Parallel()
	pool := database(t)
	entered, cancelled, open := make(chan struct{}, 10), make(chan struct{}, 10), make(chan struct{})
	defer close(open)
	m := deaf(entered, cancelled, open)
	cfg := gendurable.Config{
		NodeName: "n", Machines: []fsm.Definition{m}, DrainTimeout: time.Millisecond, Lease: time.Hour, Logger: quietly(),
	}
	first := start(t, pool, cfg)
	insert(t, first, m.New(number{}))
	<-entered
	stop(t, first)
	start(t, pool, cfg)
	select {
	case <-entered:
	case <-time.After(patience):
		t.Fatal("the row that the first engine left waits for its lease")
	}
}

// A start that fails half-way leaves nothing that is in the way of the next.
func TestAFailedStartCanBeRepeated(t *testing.T) {
	t.Parallel()
	pool := database(t)
	cfg := gendurable.Config{
		NodeName: "n", Machines: []fsm.Definition{double}, ActorSystem: actors.NewSystem(quietly()), Logger: quietly(),
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE gen_durable_nodes`); err != nil {
		t.Fatal(err)
	}
	if _, err := gendurable.Start(t.Context(), pool, cfg); err == nil {
		t.Fatal("the node could be registered in a table that is locked")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	engine := start(t, pool, cfg)
	if s := await(t, engine, insert(t, engine, double.New(number{1}))); !s.Done() {
		t.Errorf("%+v", s)
	}
}

// Messages of the drain may be in the hands of actors that crash; nothing of it may be lost.
func TestActorsMayCrashDuringTheDrain(t *testing.T) {
	t.Parallel()
	pool := database(t)
	c := &tally{runs: make(map[string]int)}
	m := c.steps()
	cfg := gendurable.Config{
		Machines: []fsm.Definition{m}, Logger: quietly(), Lease: time.Hour,
		Queues: map[string]gendurable.Queue{"default": {Concurrency: 20}},
	}
	const rounds, each = 8, 300
	queue := actors.NameQueue("default")
	victims := [][]string{{queue, actors.NameScheduler}, {actors.NameFlusher(0)}}
	for round := range rounds {
		engine := start(t, pool, cfg)
		_, before := c.repeated()
		insertSteps(t, engine, m, each)
		eventually(t, "some work", func() bool { _, ran := c.repeated(); return ran > before+100 })
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop(t, engine)
		}()
		for i := range 8 {
			engine.Crash(victims[(i+round)%len(victims)]...)
			<-time.After(time.Duration(i*round) * 200 * time.Microsecond) // elsewhere in each round
		}
		<-stopped
		if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'executing'`); n != 0 {
			t.Errorf("round %d: %d rows are left claimed", round, n)
		}
	}
	start(t, pool, cfg)
	allDone(t, pool, rounds*each)
	if repeated, ran := c.repeated(); repeated != 0 || ran != 3*rounds*each {
		t.Errorf("%d steps ran, %d of them more than once", ran, repeated)
	}
}

// Between the moment in which another process takes the name and the heartbeat that shows it, an engine goes on claiming.
func TestAReplacedEngineGivesBackWhatItClaimedSince(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	slow := g.machine("slow")
	engine := start(t, pool, gendurable.Config{
		NodeName: "n", Machines: []fsm.Definition{slow}, Lease: time.Hour, Heartbeat: 15 * time.Second, Logger: quietly(),
	})
	store, err := pg.Open(t.Context(), pool, pg.Options{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first heartbeat, which comes at once", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable_nodes WHERE beat > started_at`) == 1
	})
	successor := pg.Node{Engine: gendurable.DefaultName, Name: "n", Incarnation: "0123456789abcdef", Named: true}
	if _, err := store.RegisterNode(t.Context(), successor, time.Hour, time.Second); err != nil {
		t.Fatal(err)
	}
	insert(t, engine, slow.New(number{}))
	select {
	case <-g.entered:
	case <-engine.Done():
		t.Fatal("the engine noticed too early for this test")
	}
	ended(t, engine)
	if !errors.Is(engine.Err(), gendurable.ErrReplaced) {
		t.Errorf("the engine ended with %v", engine.Err())
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'runnable' AND attempt = 0`); n != 1 {
		t.Error("the row waits for its lease")
	}
}
