package gendurable_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

// tally counts the runs of each step of each instance in this process's memory, which no fault of the database
// can take away.
type tally struct {
	mu   sync.Mutex
	runs map[string]int
}

func (c *tally) add(id int64, step string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.runs[fmt.Sprint(id, step)]++
}

// repeated counts the steps that ran more than once, and those that ran at all.
func (c *tally) repeated() (repeated, ran int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.runs {
		if n > 1 {
			repeated++
		}
	}
	return repeated, len(c.runs)
}

// steps is a machine of three short steps that are tallied. Every second instance runs them in one task.
func (c *tally) steps() *fsm.Machine[number] {
	step := func(next string) fsm.StepFunc[number] {
		return func(_ context.Context, call *fsm.Call[number]) (fsm.Outcome, error) {
			c.add(call.ID, call.Step)
			<-time.After(time.Millisecond) // the work
			if next == "" {
				return fsm.Done(nil), nil
			}
			if call.ID%2 == 0 {
				return fsm.Next(next).Inline(), nil
			}
			return fsm.Next(next), nil
		}
	}
	return fsm.New[number]("steps").Step("a", step("b")).Step("b", step("c")).Step("c", step(""))
}

func insertSteps(t *testing.T, engine *gendurable.Engine, m *fsm.Machine[number], n int) {
	t.Helper()
	insts := make([]fsm.Instance, n)
	for i := range insts {
		insts[i] = m.New(number{i})
	}
	if _, err := engine.InsertMany(t.Context(), insts); err != nil {
		t.Fatal(err)
	}
}

// allDone waits until n instances are done; the database may be away meanwhile.
func allDone(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	var done int
	eventually(t, "all instances done", func() bool {
		err := pool.QueryRow(context.Background(), `SELECT count(*) FROM gen_durable WHERE status = 'done'`).Scan(&done)
		return err == nil && done == n
	})
}

func TestPostgresRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"fast", "immediate"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			server := devpg.ServerFor(t, devpg.Options{Private: true})
			pool, err := pgxpool.New(t.Context(), server.URL())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			if err := gendurable.Migrate(t.Context(), pool); err != nil {
				t.Fatal(err)
			}
			c := &tally{runs: make(map[string]int)}
			m := c.steps()
			engine := start(t, pool, gendurable.Config{
				Machines: []fsm.Definition{m}, Logger: quietly(),
				Queues: map[string]gendurable.Queue{"default": {Concurrency: 20}},
				// Nothing here may wait for a lease: outcomes are kept, and lost claims are found.
				Lease: time.Hour, Heartbeat: time.Second,
			})
			const instances = 3_000
			insertSteps(t, engine, m, instances)
			for i := range 2 {
				eventually(t, "some work", func() bool { _, ran := c.repeated(); return ran > (i+1)*2_000 })
				if err := server.Restart(t.Context(), mode); err != nil {
					t.Fatal(err)
				}
			}
			allDone(t, pool, instances)
			if repeated, ran := c.repeated(); repeated != 0 || ran != 3*instances {
				t.Errorf("%d steps ran, %d of them more than once; a restart of the database explains none", ran, repeated)
			}
		})
	}
}

// TestAnyActorMayCrashUnderLoad crashes actors in turn, again and again. Where no step hangs under the victim nothing
// may run twice either; a crash of the steps' own parents takes their runs along, which then are repeated.
func TestAnyActorMayCrashUnderLoad(t *testing.T) {
	t.Parallel()
	queue := actors.NameQueue("default")
	for _, c := range []struct {
		name    string
		victims [][]string
		lease   time.Duration
		repeats bool
	}{
		{"beside the steps", [][]string{
			{actors.NameFlusher(0)}, {queue, actors.NameScheduler}, {actors.NamePoke}, {actors.NameAwait},
			{actors.NameReaper}, {actors.NameGC}, {actors.NameNode},
		}, time.Hour, false},
		{"above the steps", [][]string{{queue, actors.NameSteps}, {queue}}, 3 * time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			crashInTurn(t, c.victims, c.lease, c.repeats)
		})
	}
}

func crashInTurn(t *testing.T, victims [][]string, lease time.Duration, repeats bool) {
	const instances, crashes = 4_000, 21
	pool := database(t)
	c := &tally{runs: make(map[string]int)}
	m := c.steps()
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{m}, Logger: quietly(),
		Queues: map[string]gendurable.Queue{"default": {Concurrency: 20}},
		Lease:  lease, Heartbeat: min(lease/3, time.Second), LeaseSweep: time.Second,
	})
	insertSteps(t, engine, m, instances)
	for i := range crashes {
		eventually(t, "some work", func() bool { _, ran := c.repeated(); return ran > (i+1)*300 })
		engine.Crash(victims[i%len(victims)]...)
	}
	allDone(t, pool, instances)
	repeated, ran := c.repeated()
	if ran != 3*instances || repeated != 0 && !repeats {
		t.Errorf("%d steps ran, want %d; %d ran more than once", ran, 3*instances, repeated)
	}
	if s := engine.Stats(); s.Restarts < crashes/2 {
		t.Errorf("only %d restarts: did the crashes reach the actors?", s.Restarts)
	}
	if err := engine.Err(); err != nil {
		t.Errorf("the engine gave up: %v", err)
	}
}

func TestSchedulerCrashSparesRunningSteps(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	hour := g.machine("hour")
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{hour, double}, Logger: quietly(), Lease: time.Hour, Heartbeat: time.Second,
	})
	id := insert(t, engine, hour.New(number{1}))
	<-g.entered
	engine.Crash(actors.NameQueue("default"), actors.NameScheduler)
	for i := range 20 {
		if s := await(t, engine, insert(t, engine, double.New(number{i}))); !s.Done() {
			t.Fatalf("a job after the crash: %+v", s)
		}
	}
	close(g.open)
	if s := await(t, engine, id); !s.Done() || g.runs.Load() != 1 {
		t.Errorf("the long step ended as %+v after %d runs", s, g.runs.Load())
	}
}

func TestAnActorThatKeepsFailingStopsTheEngineLoudly(t *testing.T) {
	t.Parallel()
	engine := start(t, database(t), gendurable.Config{Machines: []fsm.Definition{double}, Logger: quietly()})
	eventually(t, "the engine gives up", func() bool {
		engine.Crash(actors.NameReaper)
		return engine.Err() != nil
	})
	<-engine.Done()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := engine.Stop(ctx); err == nil {
		t.Error("Stop does not say that the engine had given up")
	}
}

func TestReplacedEngineStops(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	m := g.machine("m")
	cfg := gendurable.Config{
		NodeName: "n", Machines: []fsm.Definition{m}, Lease: time.Hour, Heartbeat: 100 * time.Millisecond, Logger: quietly(),
	}
	first := start(t, pool, cfg)
	id := insert(t, first, m.New(number{9}))
	<-g.entered
	second := start(t, pool, cfg)
	<-g.entered // the claim went over at once, whatever its lease
	<-first.Done()
	if err := first.Err(); !errors.Is(err, gendurable.ErrReplaced) {
		t.Errorf("the first engine ended with %v", err)
	}
	close(g.open)
	if s := await(t, second, id); string(s.Result) != "9" {
		t.Errorf("ended as %+v", s)
	}
	if inst, err := second.Get(t.Context(), id); err != nil || inst.Attempt != 1 {
		t.Errorf("%+v, %v: want attempt 1", inst, err)
	}
}
