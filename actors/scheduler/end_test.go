package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

func (h *house) drain(timeout time.Duration) <-chan struct{} {
	done := make(chan struct{})
	h.send(actors.Drain{Timeout: timeout, Done: done})
	return done
}

func TestDrainWaitsForRunningSteps(t *testing.T) {
	t.Parallel()
	long := newBlocking("long")
	h := open(t, func(c *Config) { c.Concurrency = 2 }, long)
	h.add("long", 4)
	receive(t, "one runs", long.running)
	receive(t, "two run", long.running)
	done := h.drain(time.Hour)
	h.add("long", 1)
	// A scheduler that fails in the middle of a drain goes on draining.
	h.system.Root.Send(h.child(actors.NameScheduler), actors.Crash{})
	select {
	case <-done:
		t.Fatal("the drain ended while two steps ran")
	case <-long.running:
		t.Fatal("a row was started in the drain")
	case <-time.After(300 * time.Millisecond):
	}
	close(long.goOn)
	receive(t, "the drain ends", done)
	if n := h.table.count(pg.Done); n != 2 {
		t.Errorf("%d done", n)
	}
	if n := h.table.count(pg.Runnable); n != 3 {
		t.Errorf("%d rows are runnable: %d still claimed", n, h.table.count(pg.Executing))
	}
	receive(t, "a second drain ends at once", h.drain(time.Hour))
}

func TestDrainCancelsWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	long := newBlocking("long")
	h := open(t, nil, long)
	id := h.add("long", 1)[0]
	receive(t, "it runs", long.running)
	receive(t, "the drain ends", h.drain(10*time.Millisecond))
	if err := receive(t, "its context ends", long.causes); !errors.Is(err, fsm.ErrDraining) {
		t.Errorf("the cause is %v", err)
	}
	if e := h.table.look(id); e.status != pg.Runnable || e.Attempt != 0 {
		t.Errorf("it is %s, attempt %d", e.status, e.Attempt)
	}
}

func TestDrainAbandonsWhatDoesNotListen(t *testing.T) {
	t.Parallel()
	running, goOn := make(chan struct{}, 1), make(chan struct{})
	h := open(t, func(c *Config) { c.DrainGrace = 10 * time.Millisecond },
		fsm.NewJob("deaf", func(context.Context, *fsm.JobCall[none]) (int, error) {
			running <- struct{}{}
			<-goOn
			return 1, nil
		}))
	id := h.add("deaf", 1)[0]
	receive(t, "it runs", running)
	receive(t, "the drain ends", h.drain(10*time.Millisecond))
	if e := h.table.look(id); e.status != pg.Executing {
		t.Errorf("it is %s and not left to its lease", e.status)
	}
	if n := h.counts.AbandonedNow.Load(); n != 1 {
		t.Errorf("%d goroutines are counted", n)
	}
	close(goOn)
	h.until("its goroutine is counted no more", func() bool { return h.counts.AbandonedNow.Load() == 0 })
	if h.table.look(id).commits != 0 {
		t.Error("its outcome was committed")
	}
}

func TestStopDoesNotWaitForSteps(t *testing.T) {
	t.Parallel()
	long := newBlocking("long")
	h := open(t, nil, long)
	h.add("long", 20)
	for range 10 {
		receive(t, "it runs", long.running)
	}
	h.stop(h.queue)
	for range 10 {
		if err := receive(t, "its context ends", long.causes); !errors.Is(err, fsm.ErrDraining) {
			t.Errorf("the cause is %v", err)
		}
	}
}

func TestAStepThatIgnoresItsTimeoutIsGivenUp(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	var ran atomic.Int64
	h := open(t, func(c *Config) { c.Concurrency, c.StepGrace = 1, 10*time.Millisecond },
		fsm.NewJob("deaf", func(context.Context, *fsm.JobCall[none]) (int, error) {
			<-goOn
			return 1, nil
		}, fsm.StepTimeout(10*time.Millisecond)), quick("quick", &ran))
	h.add("deaf", 1)
	h.until("it is given up", func() bool { return h.counts.Abandoned.Load() == 1 })
	h.add("quick", 1)
	h.until("its slot is used", func() bool { return ran.Load() == 1 })
	if n := h.counts.AbandonedNow.Load(); n != 1 {
		t.Errorf("%d goroutines are counted", n)
	}
	close(goOn)
	h.until("its goroutine is counted no more", func() bool { return h.counts.AbandonedNow.Load() == 0 })
}

func TestIdleStepActorsGo(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	h := open(t, func(c *Config) { c.IdleSteps = 20 * time.Millisecond }, quick("quick", &ran))
	h.add("quick", 100)
	h.until("all are done", func() bool { return ran.Load() == 100 })
	h.until("no step actor is left", func() bool {
		for _, bucket := range h.system.ProcessRegistry.LocalPIDs.LocalPIDs {
			for _, name := range bucket.Keys() {
				if strings.HasPrefix(name, h.child(actors.NameSteps).GetId()+"/") {
					return false
				}
			}
		}
		return true
	})
	h.add("quick", 1)
	h.until("a new one comes when it is needed", func() bool { return ran.Load() == 101 })
}

func TestRefusedOutcomes(t *testing.T) {
	t.Parallel()
	refusal := &actors.RefusedError{Err: errors.New("22P02: bad\x00 thing")}
	machine := func(handled chan error) fsm.Definition {
		return fsm.New[map[string]int]("m").Step("a", func(context.Context, *fsm.Call[map[string]int]) (fsm.Outcome, error) {
			return fsm.Done("first"), nil
		}).OnError(func(_ context.Context, _ *fsm.Call[map[string]int], err error) (fsm.Outcome, error) {
			handled <- err
			return fsm.Done("second"), nil
		})
	}
	for _, refusals := range []int{0, 1, 2, 3} {
		handled := make(chan error, 10)
		h := open(t, nil, machine(handled))
		var seen atomic.Int64
		h.refuse = func(pg.Outcome) error {
			if int(seen.Add(1)) <= refusals {
				return refusal
			}
			return nil
		}
		id := h.table.insert(pg.Claimed{Machine: "m", Version: 1, Step: "a"})[0]
		h.send(actors.Poke{Queue: "q"})
		h.until("it has ended", func() bool { return h.counts.Ended.Load() == 1 })
		e := h.table.look(id)
		if refusals > 0 {
			if err := receive(t, "the handler is asked", handled); !errors.Is(err, refusal) {
				t.Errorf("the handler got %v", err)
			}
		}
		switch refusals {
		case 0:
			expect(t, e.status == pg.Done && string(e.outcome.Result) == `"first"`, e)
		case 1:
			expect(t, e.status == pg.Done && string(e.outcome.Result) == `"second"`, e)
		case 2:
			expect(t, e.status == pg.Failed && strings.Contains(e.outcome.Error, "22P02") && !strings.Contains(e.outcome.Error, "\x00"), e)
		case 3:
			expect(t, e.status == pg.Executing && h.counts.Vanished.Load() == 1, e)
		}
	}
}

func expect(t *testing.T, ok bool, e entry) {
	t.Helper()
	if !ok {
		t.Errorf("the row is %s with outcome %+v", e.status, e.outcome)
	}
}

func TestARestartingFlusherIsAskedAgain(t *testing.T) {
	t.Parallel()
	var ran, seen atomic.Int64
	h := open(t, nil, quick("quick", &ran))
	h.refuse = func(pg.Outcome) error {
		if seen.Add(1) <= 5 {
			return actors.ErrRestarting
		}
		return nil
	}
	h.add("quick", 1)
	h.until("it is done", func() bool { return h.table.count(pg.Done) == 1 })
	if ran.Load() != 1 {
		t.Errorf("%d runs", ran.Load())
	}
}

func TestRequeuedWorkIsFoundWithoutAPoke(t *testing.T) {
	t.Parallel()
	h := open(t, func(c *Config) { c.PollBusy, c.PollIdle = time.Hour, time.Hour },
		fsm.New[struct{ N int }]("chain").Step("a", func(_ context.Context, c *fsm.Call[struct{ N int }]) (fsm.Outcome, error) {
			c.State.N++
			switch {
			case c.State.N == 10:
				return fsm.Done(c.State.N), nil
			case c.State.N%2 == 0:
				return fsm.Next("a").After(5 * time.Millisecond), nil
			}
			return fsm.Next("a"), nil
		}))
	h.table.insert(pg.Claimed{Machine: "chain", Version: 1, Step: "a"})
	h.send(actors.Poke{Queue: "q"})
	h.until("the chain is done", func() bool { return h.table.count(pg.Done) == 1 })
}

func TestAStepReadsWhatDidNotFit(t *testing.T) {
	t.Parallel()
	type state struct{ Names []string }
	h := open(t, nil, fsm.New[state]("m").Step("a", func(ctx context.Context, c *fsm.Call[state]) (fsm.Outcome, error) {
		for _, s := range c.Inbox {
			c.State.Names = append(c.State.Names, s.Name)
		}
		more, err := c.NextInbox(ctx)
		for _, s := range more {
			c.State.Names = append(c.State.Names, s.Name)
		}
		return fsm.Done(strings.Join(c.State.Names, " ") + " " + string(c.Children[0].State)), err
	}))
	id := h.table.insert(pg.Claimed{Machine: "m", Version: 1, Step: "a", HasInbox: true, MoreInbox: true,
		Inbox: []pg.Signal{{ID: 1, Name: "early", Payload: []byte(`1`)}}, ParentID: 5,
		Children:    []pg.Child{{ID: 2, Machine: "c", Status: pg.Done, State: []byte(`{"a":1}`)}},
		ChildCounts: map[pg.Status]int64{pg.Done: 1}})[0]
	h.send(actors.Poke{Queue: "q"})
	h.until("it is done", func() bool { return h.table.look(id).status == pg.Done })
	e := h.table.look(id)
	if string(e.outcome.Result) != `"early late {\"a\":1}"` {
		t.Errorf("it saw %s", e.outcome.Result)
	}
	if !e.outcome.HasInbox || e.outcome.ParentID != 5 || e.outcome.Worker != identity {
		t.Errorf("the outcome does not carry what the claim said: %+v", e.outcome)
	}
}

// TestACommitIsNotALoss: a beat that is read after the commit of a row's outcome, and answered before the word of who has
// committed it, finds the row gone. That is no loss, and the commit counts.
func TestACommitIsNotALoss(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"by the flusher", "together with work"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			running, goOn := make(chan context.Context, 1), make(chan struct{})
			written, heard := make(chan struct{}), make(chan struct{})
			log := new(lines)
			h := open(t, func(c *Config) {
				c.Heartbeat, c.Logger = 20*time.Millisecond, slog.New(slog.NewTextHandler(log, nil))
				rows := c.Store.(*table)
				c.Together = func(_, _ context.Context, o pg.Outcome, _ any, _ time.Duration) (pg.Verdict, error) {
					v := rows.flush(o)
					close(written)
					<-heard
					return v, nil
				}
			}, fsm.New[none]("quick").Step(fsm.JobStep, func(ctx context.Context, _ *fsm.Call[none]) (fsm.Outcome, error) {
				running <- ctx
				<-goOn
				if how == "by the flusher" {
					return fsm.Done(1), nil
				}
				return fsm.Together(fsm.Done(1), "work", time.Minute), nil
			}))
			h.written = func(pg.Outcome) {
				close(written)
				<-heard
			}
			id := h.add("quick", 1)[0]
			ctx := receive(t, "it runs", running)
			close(goOn)
			receive(t, "its outcome is written", written)
			receive(t, "a beat has called it lost", ctx.Done())
			if err := context.Cause(ctx); !errors.Is(err, fsm.ErrLeaseLost) {
				t.Errorf("its context ended with %v", err)
			}
			close(heard)
			h.until("its slot is free", func() bool { return h.counts.Ended.Load() == 1 && h.counts.RunningNow.Load() == 0 })
			c := h.counts
			if c.Committed.Load() != 1 || c.Stale.Load() != 0 || c.Lost.Load() != 0 || log.String() != "" {
				t.Errorf("committed %d, stale %d, lost %d; the log says %q", c.Committed.Load(), c.Stale.Load(), c.Lost.Load(), log)
			}
			if e := h.table.look(id); e.status != pg.Done || e.commits != 1 {
				t.Errorf("it is %s after %d commits", e.status, e.commits)
			}
		})
	}
}

// TestALossIsToldWhileTheStepGoesOn: nobody waits for the end of a step whose row was lost, nor for the next beat.
func TestALossIsToldWhileTheStepGoesOn(t *testing.T) {
	t.Parallel()
	running, goOn := make(chan struct{}, 1), make(chan struct{})
	h := open(t, func(c *Config) { c.Heartbeat = 20 * time.Millisecond },
		fsm.NewJob("deaf", func(context.Context, *fsm.JobCall[none]) (int, error) {
			running <- struct{}{}
			<-goOn
			return 1, nil
		}))
	id := h.add("deaf", 1)[0]
	receive(t, "it runs", running)
	h.table.with(func() { h.table.rows[id].owner = "another" })
	h.until("the loss is told", func() bool { return h.counts.Lost.Load() == 1 })
	close(goOn)
	h.until("its slot is free", func() bool { return h.counts.Ended.Load() == 1 && h.counts.RunningNow.Load() == 0 })
	if c := h.counts; c.Stale.Load() != 1 || c.Lost.Load() != 1 {
		t.Errorf("stale %d, lost %d", c.Stale.Load(), c.Lost.Load())
	}
}

// lines is a log's writer.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
