package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

type none struct{}

// blocking is a job that tells that it runs, and ends when told to or when its context ends.
type blocking struct {
	*fsm.Job[none, int]
	running chan int64
	causes  chan error
	goOn    chan struct{}
	runs    atomic.Int64
}

func newBlocking(name string) *blocking {
	b := &blocking{running: make(chan int64, 100), causes: make(chan error, 100), goOn: make(chan struct{})}
	b.Job = fsm.NewJob(name, func(ctx context.Context, j *fsm.JobCall[none]) (int, error) {
		b.runs.Add(1)
		b.running <- j.ID
		select {
		case <-b.goOn:
			return 7, nil
		case <-ctx.Done():
			b.causes <- context.Cause(ctx)
			return 0, context.Cause(ctx)
		}
	})
	return b
}

func quick(name string, ran *atomic.Int64) fsm.Definition {
	return fsm.NewJob(name, func(context.Context, *fsm.JobCall[none]) (int, error) {
		ran.Add(1)
		return 0, nil
	})
}

func TestFastJobsGrowTheClaims(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	h := open(t, nil, quick("quick", &ran))
	h.add("quick", 5000)
	h.until("all jobs are done", func() bool { return h.table.count(pg.Done) == 5000 })
	if ran.Load() != 5000 {
		t.Errorf("%d runs of 5000 jobs", ran.Load())
	}
	if n := h.counts.LargestClaim.Load(); n < 20 {
		t.Errorf("the largest claim had %d rows", n)
	}
	if n := h.counts.Claims.Load(); n > 1000 {
		t.Errorf("%d claims for 5000 jobs", n)
	}
	h.until("nothing runs and nothing is being committed", func() bool {
		return h.counts.RunningNow.Load() == 0 && h.counts.CommittingNow.Load() == 0
	})
	if c, e := h.counts.Committed.Load(), h.counts.Ended.Load(); c != 5000 || e != 5000 {
		t.Errorf("%d committed, %d ended", c, e)
	}
}

func TestASchedulersCrashCostsNothing(t *testing.T) {
	t.Parallel()
	long := newBlocking("long")
	var ran atomic.Int64
	h := open(t, func(c *Config) { c.Concurrency = 3 }, long, quick("quick", &ran))
	id := h.add("long", 1)[0]
	receive(t, "the long step runs", long.running)
	for round := int64(1); round <= 3; round++ {
		h.system.Root.Send(h.child(actors.NameScheduler), actors.Crash{})
		h.add("quick", 5)
		h.until("the queue claims again", func() bool { return ran.Load() == 5*round })
	}
	if n := long.runs.Load(); n != 1 {
		t.Errorf("the long step ran %d times", n)
	}
	close(long.goOn)
	h.until("the long step's outcome is durable", func() bool { return h.table.look(id).status == pg.Done })
	if e := h.table.look(id); e.commits != 1 || long.runs.Load() != 1 {
		t.Errorf("%d commits, %d runs", e.commits, long.runs.Load())
	}
}

// TestEveryActorMayFail: actors fail again and again under load, and every job is done in the end.
func TestEveryActorMayFail(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	h := open(t, func(c *Config) {
		c.Lease, c.Heartbeat, c.PollBusy, c.PollIdle = 400*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond
	}, quick("quick", &ran))
	const jobs = 2000
	for i := range 20 {
		h.add("quick", jobs/20)
		switch i % 10 {
		case 3:
			h.system.Root.Send(h.child(actors.NameScheduler), actors.Crash{})
		case 5:
			h.system.Root.Send(h.child(actors.NameSteps), actors.Crash{})
		case 8:
			h.send(actors.Crash{})
		}
		h.until("some more are done", func() bool { return h.table.count(pg.Done) > i*jobs/20/2 })
	}
	h.until("all jobs are done", func() bool { return h.table.count(pg.Done) == jobs })
	for id := int64(1); id <= jobs; id++ {
		if e := h.table.look(id); e.commits != 1 {
			t.Fatalf("job %d was committed %d times", id, e.commits)
		}
	}
}

// TestStepsThatStopStartNothing: a row to run comes while the steps actor waits for the end of what runs.
func TestStepsThatStopStartNothing(t *testing.T) {
	t.Parallel()
	long := newBlocking("long")
	h := open(t, nil, long)
	life := newLife(nil)
	defer life.end()
	cfg := &Config{Worker: "e:q@n-00000000000000ff", Store: h.table, Logger: slog.New(slog.DiscardHandler), QueueCounters: h.counts}
	cfg.fill()
	s := newSteps(cfg, life, h.flusher)
	stopping, handled, ends := make(chan struct{}), make(chan int, 1), make(chan struct{})
	pid := h.system.Root.Spawn(actors.NewProps(cfg.Logger, nil, func() actor.Actor {
		return actor.ReceiveFunc(func(ctx actor.Context) {
			s.Receive(ctx)
			switch ctx.Message().(type) {
			case *actor.Started:
				ctx.Spawn(actor.PropsFromFunc(func(child actor.Context) { // like a step that takes its time to return
					if _, ok := child.Message().(*actor.Stopping); ok {
						<-ends
					}
				}))
			case *actor.Stopping:
				close(stopping)
			case actors.RunSteps:
				handled <- len(ctx.Children())
			}
		})
	}))
	h.system.Root.Stop(pid)
	receive(t, "it stops", stopping)
	row := &pg.Claimed{ID: 99, Queue: "q", Machine: "long", Version: 1, Step: fsm.JobStep}
	h.system.Root.Send(pid, actors.RunSteps{Steps: []actors.RunStep{{Claimed: row, Spec: long.Spec()}}})
	if n := receive(t, "the message is handled", handled); n != 1 {
		t.Errorf("it has %d children", n)
	}
	close(ends)
	h.stop(pid)
}

func TestAStepActorsCrashCostsOneRun(t *testing.T) {
	t.Parallel()
	long := newBlocking("long")
	h := open(t, func(c *Config) { c.Lease, c.Heartbeat = 400*time.Millisecond, 100*time.Millisecond }, long)
	h.add("long", 2)
	receive(t, "the first step runs", long.running)
	receive(t, "the second step runs", long.running)
	// The steps actor's children have generated names; the crash waits in the mailbox until the step has ended,
	// so that the actor fails with nothing, or with its next run, in hand.
	for _, id := range h.system.ProcessRegistry.LocalPIDs.LocalPIDs {
		for _, name := range id.Keys() {
			if strings.HasPrefix(name, h.child(actors.NameSteps).GetId()+"/") {
				h.system.Root.Send(h.system.NewLocalPID(name), actors.Crash{})
			}
		}
	}
	h.add("long", 2)
	receive(t, "the third step runs", long.running)
	receive(t, "the fourth step runs", long.running)
	close(long.goOn)
	h.until("all are done", func() bool { return h.table.count(pg.Done) == 4 })
	h.add("long", 5)
	h.until("the queue goes on", func() bool { return h.table.count(pg.Done) == 9 })
}

func TestALostLeaseCancelsTheStep(t *testing.T) {
	t.Parallel()
	long := newBlocking("long")
	h := open(t, func(c *Config) { c.Heartbeat = 50 * time.Millisecond }, long)
	id := h.add("long", 1)[0]
	receive(t, "the step runs", long.running)
	h.table.with(func() { h.table.rows[id].owner = "another" })
	if err := receive(t, "its context ends", long.causes); !errors.Is(err, fsm.ErrLeaseLost) {
		t.Errorf("the cause is %v", err)
	}
	h.until("the slot is free", func() bool { return h.counts.RunningNow.Load() == 0 })
	if e := h.table.look(id); e.commits != 0 || e.owner != "another" {
		t.Errorf("the outcome of a lost row reached the database: %+v", e)
	}
	if h.counts.Lost.Load() != 1 || h.counts.Stale.Load() != 1 {
		t.Errorf("lost %d, stale %d", h.counts.Lost.Load(), h.counts.Stale.Load())
	}
}

// TestSlotsOfRunsWithoutAnOutcomeAreLeft: the limiter is told of the slot of a run that lost its lease, vanished or was given up: it must
// not renew what whoever takes the row gives back. Not of the slot of one that committed, which the flusher tells of.
func TestSlotsOfRunsWithoutAnOutcomeAreLeft(t *testing.T) {
	t.Parallel()
	const shard = 3
	lost := make(chan limiter.Slot, 10)
	admits := func(h *house, c *Config) {
		c.Heartbeat, c.StepGrace, c.Gates = 50*time.Millisecond, 10*time.Millisecond, []string{"g"}
		limits := h.system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
			switch m := ctx.Message().(type) {
			case actors.Admit:
				d := make([]limiter.Decision, len(m.Requests))
				for i := range d {
					d[i].Shard = shard
				}
				m.Reply <- actors.Admitted{Decisions: d}
			case actors.CreditSlots:
				for _, s := range m.Lost {
					lost <- s
				}
			}
		}))
		c.Limiter = limits
		t.Cleanup(func() { h.stop(limits) })
	}
	long := newBlocking("long")
	h := openWith(t, admits, long,
		fsm.NewJob("vanishing", func(context.Context, *fsm.JobCall[none]) (int, error) { runtime.Goexit(); return 0, nil }),
		fsm.NewJob("deaf", func(context.Context, *fsm.JobCall[none]) (int, error) { <-long.goOn; return 0, nil }, fsm.StepTimeout(time.Millisecond)))
	run := func(machine string) int64 {
		provisional := int16(pg.ProvisionalShard)
		id := h.table.insert(pg.Claimed{
			Machine: machine, Version: 1, Step: fsm.JobStep, Claim: 4, ConcurrencyKey: "g:" + machine, ConcurrencyShard: &provisional,
		})[0]
		h.send(actors.Poke{Queue: "q"})
		return id
	}
	told := func(id int64, machine string) {
		t.Helper()
		want := limiter.Slot{ID: id, Claim: 5, Key: "g:" + machine, Shard: shard}
		if got := receive(t, "the limiter is told of the slot of "+machine, lost); got != want {
			t.Errorf("the limiter is told of %+v, expected %+v", got, want)
		}
	}
	told(run("vanishing"), "vanishing")
	told(run("deaf"), "deaf")
	id := run("long")
	receive(t, "the step runs", long.running)
	h.table.with(func() { h.table.rows[id].owner = "another" })
	told(id, "long")
	if n := h.counts.Stale.Load(); n != 1 {
		t.Errorf("%d runs are stale", n)
	}
	committed := run("long")
	receive(t, "the step runs", long.running)
	close(long.goOn)
	h.until("it is done", func() bool { return h.table.look(committed).status == pg.Done && h.counts.RunningNow.Load() == 0 })
	select {
	case s := <-lost:
		t.Errorf("the limiter is told of %+v as well", s)
	default:
	}
}

func TestACancelReachesARunningStep(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"message", "heartbeat"} {
		t.Run(how, func(t *testing.T) {
			long := newBlocking("long")
			h := open(t, func(c *Config) {
				if how == "heartbeat" {
					c.Heartbeat = 50 * time.Millisecond
				}
			}, long)
			id := h.add("long", 1)[0]
			receive(t, "the step runs", long.running)
			reason := "wrong customer"
			h.table.with(func() { h.table.rows[id].CancelReason = &reason })
			if how == "message" {
				h.send(actors.CancelRequested{ID: id, Reason: reason})
			}
			if err := receive(t, "its context ends", long.causes); !errors.Is(err, fsm.ErrCancelled) {
				t.Errorf("the cause is %v", err)
			}
			h.until("the instance has failed", func() bool { return h.table.look(id).status == pg.Failed })
		})
	}
}

func TestWhatMustNotRunIsEnded(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	h := open(t, nil, quick("quick", &ran))
	reason := "wrong customer"
	row := pg.Claimed{Machine: "quick", Version: 1, Step: fsm.JobStep}
	cancelled, crashed, tried, stranger := row, row, row, row
	cancelled.CancelReason, crashed.Crashes, tried.Attempt = &reason, 10, 20
	stranger.CancelReason, stranger.Machine = &reason, "unknown"
	ids := h.table.insert(cancelled, crashed, tried, stranger)
	h.send(actors.Poke{Queue: "q"})
	h.until("all have failed", func() bool { return h.table.count(pg.Failed) == 4 })
	for i, want := range []string{"cancelled: wrong customer", "took its worker down 10 times", "gave up after 20 attempts", "cancelled: wrong customer"} {
		if e := h.table.look(ids[i]); !strings.Contains(e.outcome.Error, want) {
			t.Errorf("row %d failed with %q, not with %q", i, e.outcome.Error, want)
		}
	}
	if ran.Load() != 0 {
		t.Errorf("%d of them ran", ran.Load())
	}
}

func TestGoexitLeavesTheRowToItsLease(t *testing.T) {
	t.Parallel()
	first := true
	var ran atomic.Int64
	h := open(t, func(c *Config) {
		c.Concurrency = 1
		c.Lease, c.Heartbeat, c.PollBusy, c.PollIdle = 300*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond, 50*time.Millisecond
	}, fsm.NewJob("exit", func(_ context.Context, j *fsm.JobCall[none]) (int, error) {
		if first {
			first = false
			runtime.Goexit()
		}
		return j.Attempt, nil
	}), quick("quick", &ran))
	id := h.add("exit", 1)[0]
	h.until("the slot is free", func() bool { return h.counts.Vanished.Load() == 1 })
	h.add("quick", 1)
	h.until("the slot is used", func() bool { return ran.Load() == 1 })
	h.until("the row ran again after its lease", func() bool { return h.table.look(id).status == pg.Done })
	if e := h.table.look(id); string(e.outcome.Result) != "1" {
		t.Errorf("the second run was attempt %s", e.outcome.Result)
	}
}

func TestUnknownStepsAreLeftToOthers(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	h := open(t, nil, quick("quick", &ran), fsm.New[struct{ N int }]("typed").Step("a",
		func(context.Context, *fsm.Call[struct{ N int }]) (fsm.Outcome, error) { return fsm.Done(1), nil }))
	ids := h.table.insert(
		pg.Claimed{Machine: "stranger", Version: 1, Step: "a"},
		pg.Claimed{Machine: "quick", Version: 9, Step: fsm.JobStep},
		pg.Claimed{Machine: "quick", Version: 1, Step: "other"},
		pg.Claimed{Machine: "typed", Version: 1, Step: "a", State: []byte(`{"N":"text"}`)},
	)
	h.add("quick", 20)
	h.until("the known ones are done", func() bool { return ran.Load() == 20 })
	h.until("the unknown ones are given back", func() bool { return h.table.count(pg.Runnable) == 4 })
	h.send(actors.Poke{Queue: "q"})
	h.until("claims leave them out", func() bool {
		n := 0
		h.table.with(func() { n = len(h.table.claims[len(h.table.claims)-1].Skip) })
		return n == 4
	})
	for _, id := range ids {
		if e := h.table.look(id); e.commits != 0 || e.Attempt != 0 {
			t.Errorf("an unknown row was touched: %+v", e)
		}
	}
	if n := h.counts.UnknownSteps.Load(); n != 4 {
		t.Errorf("%d unknown steps were counted", n)
	}
}

// TestAnUnreadableStepIsTriedAgain: what kept a state from being decoded may pass, and one row that nobody can read does not keep
// the others of its step from running.
func TestAnUnreadableStepIsTriedAgain(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	var mu sync.Mutex
	var left []pg.StepRef
	log := new(lines)
	broken.Store(true)
	h := open(t, func(c *Config) {
		c.PollIdle, c.PollBusy = time.Hour, time.Hour
		c.Limits.Codec = keyStore{&broken}
		c.Logger = slog.New(slog.NewTextHandler(log, nil))
		c.LeftOut = func(steps []pg.StepRef) {
			mu.Lock()
			defer mu.Unlock()
			left = steps
		}
	}, fsm.New[struct{ N int }]("typed").Step("a",
		func(context.Context, *fsm.Call[struct{ N int }]) (fsm.Outcome, error) { return fsm.Done(1), nil }))
	good := pg.Claimed{Machine: "typed", Version: 1, Step: "a", State: []byte(`{"$enc":"e30="}`)}
	poison := good
	poison.State = []byte(`{"N":"text"}`)
	ids := h.table.insert(poison, good, good)
	h.send(actors.Poke{Queue: "q"})
	h.until("it is left out", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(left) == 1 && left[0].Step == "a" && h.counts.UnknownSteps.Load() == 1
	})
	broken.Store(false)
	h.until("the others run", func() bool { return h.table.count(pg.Done) == 2 })
	more := h.table.insert(good, good)
	h.send(actors.Poke{Queue: "q"})
	h.until("more of them run", func() bool { return h.table.count(pg.Done) == 4 })
	if e := h.table.look(ids[0]); e.commits != 0 || e.Attempt != 0 {
		t.Errorf("the unreadable one of %v and %v was touched: %+v", ids, more, e)
	}
	// The next incarnation finds it out anew, and does not count it twice.
	h.system.Root.Send(h.child(actors.NameScheduler), actors.Crash{})
	h.until("it is found anew", func() bool {
		return strings.Count(log.String(), "leaves it to others") == 2 && h.counts.UnknownSteps.Load() == 1
	})
	if n := strings.Count(log.String(), "does not fit"); n != 1 || !strings.Contains(log.String(), "leaves it to others") {
		t.Errorf("it was logged %d times:\n%s", n, log)
	}
}

// keyStore is a codec that decodes nothing while it is broken.
type keyStore struct{ broken *atomic.Bool }

func (keyStore) Encode(plain []byte) ([]byte, error) { return plain, nil }
func (k keyStore) Decode(stored []byte) ([]byte, error) {
	if k.broken.Load() {
		return nil, errors.New("the key store does not answer")
	}
	return stored, nil
}

func TestAnUnansweredClaimIsFoundAgain(t *testing.T) {
	t.Parallel()
	var ran atomic.Int64
	h := open(t, nil, quick("quick", &ran))
	h.table.with(func() { h.table.down = errors.New("connection refused") })
	h.add("quick", 50)
	h.until("claims fail", func() bool { return h.counts.ClaimErrors.Load() > 0 })
	h.table.with(func() { h.table.down, h.table.loseAnswer = nil, true })
	h.until("all jobs are done", func() bool { return h.table.count(pg.Done) == 50 })
	if ran.Load() != 50 {
		t.Errorf("%d runs", ran.Load())
	}
}

// TestALookAtAllRowsMayTakeLong: as long as four times the last one, or twice what one was given that was cut off, but not longer than
// half of the lease, which begins with the statement.
func TestALookAtAllRowsMayTakeLong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		timeout, took time.Duration
		ended         error
		want          time.Duration
	}{
		{15 * time.Second, time.Second, nil, 4 * time.Second},
		{15 * time.Second, 10 * time.Second, nil, 40 * time.Second},
		{40 * time.Second, 39 * time.Second, nil, time.Minute},
		{15 * time.Second, 15 * time.Second, context.DeadlineExceeded, 30 * time.Second},
		{40 * time.Second, 40 * time.Second, context.DeadlineExceeded, time.Minute},
		{15 * time.Second, time.Second, context.Canceled, 4 * time.Second},
	} {
		if got := patience(c.timeout, c.took, c.ended, time.Minute); got != c.want {
			t.Errorf("after %v of %v (%v) the next may take %v, expected %v", c.took, c.timeout, c.ended, got, c.want)
		}
	}
}

// laggard is a table whose first claim is cut off by its timeout.
type laggard struct {
	*table
	given chan time.Duration
}

func (l laggard) Claim(ctx context.Context, r pg.ClaimRequest) ([]pg.Claimed, error) {
	deadline, _ := ctx.Deadline()
	select {
	case l.given <- time.Until(deadline):
		if len(l.given) == 1 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	default: // the test has seen enough
	}
	return l.table.Claim(ctx, r)
}

// TestAClaimThatWasCutOffGetsMoreTime: what an open transaction keeps may be more than the usual timeout allows to look at.
func TestAClaimThatWasCutOffGetsMoreTime(t *testing.T) {
	t.Parallel()
	given := make(chan time.Duration, 2)
	h := openWith(t, func(h *house, c *Config) {
		c.Lease, c.Heartbeat = 6*time.Second, 2*time.Second
		c.Store = laggard{h.table, given}
	}, inline(1, nil))
	h.until("two claims", func() bool { return len(given) == 2 })
	if first, second := <-given, <-given; first > 1500*time.Millisecond || second <= 1500*time.Millisecond || second > 3*time.Second {
		t.Errorf("the claims were given %v and %v, expected about 1.5 s and 3 s", first, second)
	}
}
