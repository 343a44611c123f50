package scheduler

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

type counting struct{ N int }

// inline is a machine of one step that counts up to last, and does more each time if told to.
func inline(last int, each func(ctx context.Context, c *fsm.Call[counting]) (fsm.Outcome, error), opts ...fsm.Option) *fsm.Machine[counting] {
	return fsm.New[counting]("chain", append(opts, fsm.Inline())...).
		Step("a", func(ctx context.Context, c *fsm.Call[counting]) (fsm.Outcome, error) {
			c.State.N++
			if each != nil {
				if out, err := each(ctx, c); out != nil || err != nil {
					return out, err
				}
			}
			if c.State.N == last {
				return fsm.Done(c.State.N), nil
			}
			return fsm.Next("a"), nil
		})
}

func (h *house) chain(row pg.Claimed) int64 {
	row.Machine, row.Version, row.Step = "chain", 1, "a"
	id := h.table.insert(row)[0]
	h.send(actors.Poke{Queue: "q"})
	return id
}

func TestAChainTakesOneClaim(t *testing.T) {
	h := open(t, nil, inline(10, nil))
	id := h.chain(pg.Claimed{Attempt: 3})
	h.until("its slot is free", func() bool { return h.counts.Ended.Load() == 1 })
	e := h.table.look(id)
	expect(t, e.status == pg.Done && e.commits == 10 && string(e.outcome.Result) == "10", e)
	if claimed, went := h.counts.ClaimedRows.Load(), h.counts.Continued.Load(); claimed != 1 || went != 9 {
		t.Errorf("%d rows claimed, %d steps went on", claimed, went)
	}
	if committed, yielded := h.counts.Committed.Load(), h.counts.Yielded.Load(); committed != 1 || yielded != 0 {
		t.Errorf("%d runs committed, %d yielded", committed, yielded)
	}
}

// TestWhatGoesOn looks at which transitions keep their row, and with which change of the key.
func TestWhatGoesOn(t *testing.T) {
	next := fsm.Next("b")
	for name, test := range map[string]struct {
		out  fsm.Outcome
		key  string
		goes bool
		does pg.KeyChange
	}{
		"without being asked": {next, "", false, 0},
		"asked":               {next.Inline(), "", true, pg.KeepKey},
		"with a key":          {next.Inline(), "k", true, pg.KeepKey},
		"delayed":             {next.Inline().After(time.Microsecond), "", false, 0},
		"a rate limit":        {next.Inline().RateLimit("r"), "", false, 0},
		"a new key":           {next.Inline().ConcurrencyKey("k"), "", false, 0},
		"another key":         {next.Inline().ConcurrencyKey("k"), "j", false, 0},
		"the same key":        {next.Inline().ConcurrencyKey("k"), "k", true, pg.KeepKey},
		"a key released":      {next.Inline().ReleaseKey(), "k", true, pg.ReleaseKey},
		"no key released":     {next.Inline().ReleaseKey(), "", true, pg.KeepKey},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, nil, fsm.New[counting]("m").
				Step("a", func(context.Context, *fsm.Call[counting]) (fsm.Outcome, error) { return test.out, nil }).
				Step("b", func(context.Context, *fsm.Call[counting]) (fsm.Outcome, error) { return fsm.Done(nil), nil }))
			id := h.table.insert(pg.Claimed{Machine: "m", Version: 1, Step: "a", ConcurrencyKey: test.key})[0]
			h.send(actors.Poke{Queue: "q"})
			h.until("it is done", func() bool { return h.table.look(id).status == pg.Done })
			e := h.table.look(id)
			if (len(e.continued) == 1) != test.goes {
				t.Fatalf("it went on: %v", e.continued)
			}
			if test.goes && (e.continued[0].Key != test.does || e.continued[0].NewKey != "") {
				t.Errorf("the key: %+v", e.continued[0])
			}
		})
	}
}

func TestAnErrorHandlersNextGoesOn(t *testing.T) {
	m := inline(3, func(_ context.Context, c *fsm.Call[counting]) (fsm.Outcome, error) {
		if c.State.N == 2 {
			return nil, errors.New("no")
		}
		return nil, nil
	}).OnError(func(_ context.Context, c *fsm.Call[counting], _ error) (fsm.Outcome, error) {
		c.State.N = 2
		return fsm.Next("a"), nil
	})
	h := open(t, nil, m)
	id := h.chain(pg.Claimed{})
	h.until("it is done", func() bool { return h.table.look(id).status == pg.Done })
	if n := h.counts.Continued.Load(); n != 2 {
		t.Errorf("%d steps went on", n)
	}
}

func TestAChainYieldsAfterItsLimit(t *testing.T) {
	h := open(t, func(c *Config) { c.InlineLimit = 3 }, inline(10, nil))
	id := h.chain(pg.Claimed{})
	h.until("it is done", func() bool { return h.table.look(id).status == pg.Done })
	if claimed, went, yielded := h.counts.ClaimedRows.Load(), h.counts.Continued.Load(), h.counts.Yielded.Load(); claimed != 4 || went != 6 || yielded != 3 {
		t.Errorf("%d claims of the row, %d steps went on, %d yielded", claimed, went, yielded)
	}
}

// TestEachStepOfAChainSeesItsOwn: signals as of its own beginning, attempt 0, a deadline of its own.
func TestEachStepOfAChainSeesItsOwn(t *testing.T) {
	var rows *table
	var deadlines []time.Time
	var names []string
	h := open(t, func(c *Config) { rows = c.Store.(*table) }, inline(4, func(ctx context.Context, c *fsm.Call[counting]) (fsm.Outcome, error) {
		deadline, _ := ctx.Deadline()
		deadlines = append(deadlines, deadline)
		for _, s := range c.Inbox {
			names = append(names, s.Name)
		}
		if c.Attempt != 0 && c.State.N > 1 || len(c.Awaited) != 0 && c.State.N > 1 {
			return nil, errors.New("it sees what an earlier step saw")
		}
		if c.State.N == 2 {
			rows.with(func() { rows.rows[c.ID].Inbox = []pg.Signal{{ID: 9, Name: "late", Payload: []byte(`1`)}} })
		}
		if c.State.N != 2 {
			rows.with(func() { rows.rows[c.ID].Inbox = nil })
		}
		return nil, nil
	}, fsm.StepTimeout(time.Hour)))
	id := h.chain(pg.Claimed{Attempt: 2, Awaits: []string{"early"}, HasInbox: true, Inbox: []pg.Signal{{ID: 8, Name: "early", Payload: []byte(`1`)}}})
	h.until("it is done", func() bool { return h.counts.Ended.Load() == 1 })
	e := h.table.look(id)
	expect(t, e.status == pg.Done, e)
	if got := strings.Join(names, " "); got != "early late" {
		t.Errorf("the steps saw %q", got)
	}
	for i := 1; i < len(deadlines); i++ {
		if !deadlines[i].After(deadlines[i-1]) {
			t.Errorf("the steps' deadlines are %v", deadlines)
		}
	}
	if h := e.continued; len(h[0].Handed) != 1 || len(h[1].Handed) != 0 {
		t.Errorf("handed were %v, then %v", h[0].Handed, h[1].Handed)
	}
}

func TestADrainEndsAChain(t *testing.T) {
	running := make(chan int, 10)
	h := open(t, nil, inline(1000, func(ctx context.Context, c *fsm.Call[counting]) (fsm.Outcome, error) {
		running <- c.State.N
		if c.State.N == 2 {
			<-ctx.Done() // the drain has begun; the step is through with its work all the same
		}
		return nil, nil
	}))
	id := h.chain(pg.Claimed{})
	receive(t, "the first step runs", running)
	receive(t, "the second step runs", running)
	receive(t, "the drain ends", h.drain(0))
	e := h.table.look(id)
	expect(t, e.status == pg.Runnable && string(e.State) == `{"N":2}` && e.Attempt == 0 && e.outcome.Kind == pg.KindNext, e)
	if len(running) > 0 || h.counts.Yielded.Load() != 1 {
		t.Errorf("%d more steps began, %d chains yielded", len(running), h.counts.Yielded.Load())
	}
}

// TestAStepIsNotBegunInADrain: the drain comes while the step before it is being committed.
func TestAStepIsNotBegunInADrain(t *testing.T) {
	h := open(t, nil)
	m := inline(1000, func(context.Context, *fsm.Call[counting]) (fsm.Outcome, error) {
		t.Error("a step ran")
		return nil, nil
	})
	// Not the identity of the scheduler that runs here as well: it would give back what it does not hold. And the row
	// never stands in the queue, from which that scheduler might claim it first.
	const id, other = 1, "e:q@n-00000000000000ff"
	h.table.with(func() {
		h.table.rows[id] = &entry{status: pg.Executing, owner: other, lease: time.Now().Add(time.Hour),
			Claimed: pg.Claimed{ID: id, Queue: "q", Machine: "chain", Version: 1, Step: "a", State: []byte(`{}`)}}
	})
	cfg := &Config{Worker: other, Store: h.table, Flushers: []*actor.PID{h.flusher}}
	cfg.fill()
	s := &step{cfg: cfg, life: newLife(nil)}
	defer s.life.end()
	s.life.drain(actors.Drain{Timeout: time.Hour}, time.Now())
	row := h.table.look(id).Claimed
	r := newRun(actors.RunStep{Claimed: &row, Spec: m.Spec()})
	defer r.cancel(nil)
	r.steps = 1
	ended := make(chan actors.StepEnded, 1)
	pid := h.system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		if _, ok := ctx.Message().(*actor.Started); ok {
			s.ctx = ctx
			ended <- s.carryOut(r)
		}
	}))
	defer h.stop(pid)
	if e := receive(t, "the run ends", ended); e.End != actors.EndCommitted || e.Delay != 0 {
		t.Errorf("it ended as %+v", e)
	}
	if e := h.table.look(id); e.outcome == nil || e.outcome.Kind != pg.KindRetry || !e.outcome.Uncounted || e.Attempt != 0 {
		t.Errorf("the row is %s, attempt %d", e.status, e.Attempt)
	}
}

func TestACancelReachesWhicheverStepRuns(t *testing.T) {
	running := make(chan int, 10)
	h := open(t, nil, inline(1000, func(ctx context.Context, c *fsm.Call[counting]) (fsm.Outcome, error) {
		if c.State.N < 3 {
			return nil, nil
		}
		running <- c.State.N
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), fsm.ErrCancelled) {
			t.Errorf("the cause is %v", context.Cause(ctx))
		}
		return nil, nil // it wants to go on all the same
	}))
	id := h.chain(pg.Claimed{})
	receive(t, "the third step runs", running)
	h.table.with(func() { h.table.rows[id].CancelReason = new("enough") })
	h.send(actors.CancelRequested{ID: id, Reason: "enough"})
	h.until("it has ended", func() bool { return h.counts.Ended.Load() == 1 })
	e := h.table.look(id)
	expect(t, e.status == pg.Failed && e.commits == 3, e)
	if len(running) > 0 {
		t.Error("another step began")
	}
}

func TestALostRowEndsItsChain(t *testing.T) {
	var rows *table
	ran := 0
	h := open(t, func(c *Config) { rows = c.Store.(*table) }, inline(1000, func(_ context.Context, c *fsm.Call[counting]) (fsm.Outcome, error) {
		ran++
		if c.State.N == 3 {
			rows.with(func() { rows.rows[c.ID].owner = "somebody else" })
		}
		return nil, nil
	}))
	h.chain(pg.Claimed{})
	h.until("it has ended", func() bool { return h.counts.Ended.Load() == 1 })
	if h.counts.Stale.Load() != 1 || ran != 3 || h.counts.Continued.Load() != 2 {
		t.Errorf("%d stale, %d steps ran, %d went on", h.counts.Stale.Load(), ran, h.counts.Continued.Load())
	}
}

// TestAChainsGoexitAndScheduler: neither a scheduler that fails nor a step that vanishes repeats what was committed.
func TestAChainsGoexitAndScheduler(t *testing.T) {
	running, goOn := make(chan int, 10), make(chan struct{})
	h := open(t, func(c *Config) { c.Lease, c.Heartbeat, c.PollIdle = time.Hour, time.Hour, 50*time.Millisecond }, inline(5, func(_ context.Context, c *fsm.Call[counting]) (fsm.Outcome, error) {
		running <- c.State.N
		<-goOn
		if c.State.N == 3 {
			runtime.Goexit()
		}
		return nil, nil
	}))
	id := h.chain(pg.Claimed{})
	for n := 1; n <= 3; n++ {
		if got := receive(t, "a step runs", running); got != n {
			t.Errorf("step %d runs, expected %d", got, n)
		}
		h.system.Root.Send(h.child(actors.NameScheduler), actors.Crash{})
		goOn <- struct{}{}
	}
	h.until("it has ended", func() bool { return h.counts.Vanished.Load() == 1 })
	e := h.table.look(id)
	if e.status != pg.Executing || string(e.State) != `{"N":2}` || e.commits != 2 {
		t.Errorf("the row is %s with %s after %d commits", e.status, e.State, e.commits)
	}
}

// TestAChainGoesOnAfterAPause: the claim that ends the pause is known to the steps that it starts, however fast they are.
func TestAChainGoesOnAfterAPause(t *testing.T) {
	written := make(chan struct{})
	h := openWith(t, func(h *house, _ *Config) {
		var first sync.Once
		h.written = func(pg.Outcome) { first.Do(func() { close(written) }) }
		h.system.Root.WithSenderMiddleware(func(next actor.SenderFunc) actor.SenderFunc {
			return func(ctx actor.SenderContext, to *actor.PID, e *actor.MessageEnvelope) {
				next(ctx, to, e)
				if _, starts := e.Message.(actors.RunSteps); starts {
					select { // its queue has started it, and does nothing else before it has committed
					case <-written:
					case <-time.After(time.Minute):
						t.Error("the step did not commit")
					}
				}
			}
		})
	}, inline(10, nil))
	h.send(actors.QueuePaused{Queue: "q"})
	id := h.chain(pg.Claimed{})
	h.until("the chain's end", func() bool { return h.table.look(id).status == pg.Done })
	if n := h.counts.Yielded.Load(); n != 0 {
		t.Errorf("it went back to its queue %d times", n)
	}
}
