package gendurable_test

import (
	"context"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// TestPauseAcrossNodesAndRestarts: nothing of a paused queue begins, on any node, whenever it was started; what runs
// commits; what was claimed ahead goes back.
func TestPauseAcrossNodesAndRestarts(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := newGate()
	m := g.machine("m")
	cfg := gendurable.Config{
		Machines: []fsm.Definition{m, double}, Queues: map[string]gendurable.Queue{"default": {Concurrency: 1}},
		PollBusy: 10 * time.Millisecond, PollIdle: 20 * time.Millisecond,
	}
	one := start(t, pool, cfg)
	running := insert(t, one, m.New(number{7}))
	<-g.entered
	two := start(t, pool, cfg)
	for range 2 {
		if err := two.Pause(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
	}
	var waiting []gendurable.ID
	for i := range 20 {
		waiting = append(waiting, insert(t, one, double.New(number{i})))
	}
	if paused, err := one.PausedQueues(t.Context()); err != nil || len(paused) != 1 || paused[0].Queue != "default" || paused[0].Since.IsZero() {
		t.Errorf("paused are %+v, %v", paused, err)
	}
	close(g.open)
	if s := await(t, one, running); string(s.Result) != "7" {
		t.Errorf("the step that ran settled as %+v", s)
	}
	three := start(t, pool, cfg) // after the pause
	looks := func(e *gendurable.Engine) int64 { return e.Stats().Queues["default"].EmptyClaims }
	for _, e := range []*gendurable.Engine{one, two, three} {
		seen := looks(e)
		eventually(t, "more looks at the paused queue", func() bool { return looks(e) >= seen+3 })
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE claims > 0`); n != 1 {
		t.Errorf("%d instances were claimed, expected only the one that ran before", n)
	}
	if err := three.Resume(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	for i, id := range waiting {
		if s := await(t, one, id); !s.Done() {
			t.Errorf("instance %d settled as %+v", i, s)
		}
	}
}

// TestPauseEndsInlineChains: a chain returns to its queue after the step that runs, and goes on where it was.
func TestPauseEndsInlineChains(t *testing.T) {
	t.Parallel()
	pool := database(t)
	entered, open := make(chan int, 100), make(chan struct{})
	m := counter("m", 50, func(ctx context.Context, c *fsm.Call[number]) error {
		if c.State.N == 3 {
			entered <- c.State.N
			<-open
		}
		return nil
	})
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m}})
	id := insert(t, engine, m.New(number{}))
	<-entered
	if err := engine.Pause(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	// The scheduler has heard of it once it answers to what was sent later. Most likely: a poke goes another way, and on a busy
	// machine it may be there first. Then the chain goes on for a step or two.
	seen := engine.Stats().Queues["default"].Claims
	engine.Poke("default")
	eventually(t, "a claim after the pause", func() bool { return engine.Stats().Queues["default"].Claims > seen })
	close(open)
	eventually(t, "the chain's return to the queue", func() bool { // it is counted before it is committed
		inst, err := engine.Get(t.Context(), id)
		return err == nil && inst.Status == fsm.Runnable
	})
	if err := engine.Resume(t.Context(), "default"); err != nil {
		t.Fatal(err)
	}
	if s := await(t, engine, id); string(s.Result) != "50" {
		t.Errorf("it settled as %+v", s)
	}
	if y := engine.Stats().Queues["default"].Yielded; y != 1 {
		t.Errorf("after the end of the pause the chain yielded again: %d times in all", y)
	}
}

// TestPauseIsHeardByOtherProcesses: with PokePostgres another process's chain yields although its next heartbeat is far away.
func TestPauseIsHeardByOtherProcesses(t *testing.T) {
	t.Parallel()
	pool := database(t)
	m := counter("m", 1<<30, nil)
	engine := start(t, pool, pollless(gendurable.Config{
		Machines: []fsm.Definition{m}, InlineLimit: 1 << 30, Heartbeat: time.Hour, Lease: 3 * time.Hour,
	}))
	client := announcing(t, pool, gendurable.ClientConfig{Machines: []fsm.Definition{m}})
	id := insert(t, engine, m.New(number{}))
	eventually(t, "the chain", func() bool { return engine.Stats().Queues["default"].Continued > 3 })
	eventually(t, "the chain's return to the queue", func() bool {
		// Again and again: the first notice may have been sent before the engine listened.
		if err := client.Pause(t.Context(), "default"); err != nil {
			t.Fatal(err)
		}
		inst, err := client.Get(t.Context(), id)
		return err == nil && inst.Status == fsm.Runnable
	})
	if got, err := client.Cancel(t.Context(), id, "enough"); err != nil || got != gendurable.CancelEnded {
		t.Errorf("cancel in a pause: %v, %v", got, err)
	}
}
