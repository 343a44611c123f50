package scheduler

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// together counts how many steps run at once.
type together struct{ now, most, ran atomic.Int64 }

func (c *together) run(during func()) {
	actors.Max(&c.most, c.now.Add(1))
	during()
	c.now.Add(-1)
	c.ran.Add(1)
}

// TestOutcomesThatWaitHoldNoSlot: the flusher takes its time. Steps run on meanwhile, one at a time as Concurrency says, but not
// without an end, and the rows whose outcomes wait are beaten.
func TestOutcomesThatWaitHoldNoSlot(t *testing.T) {
	t.Parallel()
	var steps together
	job := fsm.NewJob("job", func(context.Context, *fsm.JobCall[none]) (int, error) {
		steps.run(func() {})
		return 0, nil
	})
	h := open(t, func(c *Config) { c.Concurrency, c.Heartbeat = 1, 50*time.Millisecond }, job)
	release := make(chan struct{})
	h.refuse = func(pg.Outcome) error {
		<-release
		return nil
	}
	const jobs, slots, uncommitted = 20, 1, 4
	h.add("job", jobs)
	h.until("as many have run as may wait for their commit", func() bool { return steps.ran.Load() == slots+uncommitted })
	h.until("the scheduler knows", func() bool { return h.counts.CommittingNow.Load() == slots+uncommitted })
	held := map[int64]time.Time{}
	h.table.with(func() {
		for id, e := range h.table.rows {
			if e.status == pg.Executing {
				held[id] = e.lease
			}
		}
	})
	h.until("what waits is beaten", func() bool {
		beaten := 0
		h.table.with(func() {
			for id, lease := range held {
				if h.table.rows[id].lease.After(lease) {
					beaten++
				}
			}
		})
		return beaten >= slots+uncommitted
	})
	if n := steps.ran.Load(); n != slots+uncommitted {
		t.Errorf("%d steps have run although no outcome was committed", n)
	}
	close(release)
	h.until("all are done", func() bool { return h.table.count(pg.Done) == jobs })
	if n := steps.most.Load(); n != slots {
		t.Errorf("%d steps ran at once", n)
	}
	for id := int64(1); id <= jobs; id++ {
		if e := h.table.look(id); e.commits != 1 {
			t.Errorf("job %d was committed %d times", id, e.commits)
		}
	}
}

// TestAnErrorHandlerWaitsForASlot: the database refuses an outcome whose step has given up its slot. The error handler is the
// user's code as well: it runs when there is a slot again, also when the scheduler that it asked has failed since.
func TestAnErrorHandlerWaitsForASlot(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"", "the scheduler fails"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			var steps together
			long := newBlocking("long")
			occupied, handled := make(chan struct{}), make(chan error, 1)
			first := fsm.New[map[string]int]("first").Step("a", func(context.Context, *fsm.Call[map[string]int]) (fsm.Outcome, error) {
				steps.run(func() {})
				return fsm.Done("first"), nil
			}).OnError(func(_ context.Context, _ *fsm.Call[map[string]int], err error) (fsm.Outcome, error) {
				steps.run(func() {})
				handled <- err
				return fsm.Done("second"), nil
			})
			second := fsm.NewJob("second", func(ctx context.Context, j *fsm.JobCall[none]) (int, error) {
				steps.run(func() {
					close(occupied)
					select {
					case <-long.goOn:
					case <-ctx.Done():
					}
				})
				return 0, nil
			})
			h := open(t, func(c *Config) { c.Concurrency, c.Heartbeat = 1, 50*time.Millisecond }, first, second)
			refusal := &actors.RefusedError{Err: errors.New("22P02: bad thing")}
			var refused atomic.Bool
			h.refuse = func(o pg.Outcome) error {
				if o.ID != 1 || refused.Swap(true) {
					return nil
				}
				<-occupied
				return refusal
			}
			h.table.insert(pg.Claimed{Machine: "first", Version: 1, Step: "a"}, pg.Claimed{Machine: "second", Version: 1, Step: fsm.JobStep})
			h.send(actors.Poke{Queue: "q"})
			receive(t, "the second step has the slot of the first", occupied)
			h.until("the first is refused", refused.Load)
			if how != "" {
				h.system.Root.Send(h.child(actors.NameScheduler), actors.Crash{})
				for range 3 {
					before := h.table.look(2).lease
					h.until("its next life knows what runs", func() bool { return h.table.look(2).lease.After(before) })
				}
			}
			close(long.goOn)
			if err := receive(t, "the handler runs", handled); !errors.Is(err, refusal) {
				t.Errorf("the handler got %v", err)
			}
			h.until("all is done", func() bool {
				return h.table.look(1).status == pg.Done && h.table.look(2).status == pg.Done
			})
			if n := steps.most.Load(); n != 1 {
				t.Errorf("%d pieces of user code ran at once", n)
			}
		})
	}
}

// TestADrainEndsAWaitForASlot: a run that waits for a slot goes back to its queue when the drain interrupts the steps.
func TestADrainEndsAWaitForASlot(t *testing.T) {
	t.Parallel()
	stubborn := newBlocking("stubborn")
	job := fsm.NewJob("job", func(context.Context, *fsm.JobCall[none]) (int, error) { return 0, nil })
	occupied := make(chan struct{})
	deaf := fsm.NewJob("deaf", func(context.Context, *fsm.JobCall[none]) (int, error) {
		close(occupied)
		<-stubborn.goOn
		return 0, nil
	})
	h := open(t, func(c *Config) { c.Concurrency = 1 }, job, deaf)
	var refused atomic.Bool
	h.refuse = func(o pg.Outcome) error {
		if o.ID != 1 || refused.Swap(true) {
			return nil
		}
		<-occupied
		return &actors.RefusedError{Err: errors.New("no")}
	}
	h.table.insert(pg.Claimed{Machine: "job", Version: 1, Step: fsm.JobStep}, pg.Claimed{Machine: "deaf", Version: 1, Step: fsm.JobStep})
	h.send(actors.Poke{Queue: "q"})
	receive(t, "the second step has the slot of the first", occupied)
	done := make(chan struct{})
	h.send(actors.Drain{Timeout: 10 * time.Millisecond, Done: done})
	h.until("the first is back", func() bool { return h.table.look(1).status == pg.Runnable })
	close(stubborn.goOn)
	receive(t, "the drain ends", done)
}

// TestAHandlerThatGoesOnKeepsItsSlot: the error handler of a refused outcome goes on to another step in the same claim, and what
// that comes to is refused as well. Its handler runs in the slot that the first one has waited for.
func TestAHandlerThatGoesOnKeepsItsSlot(t *testing.T) {
	t.Parallel()
	var steps together
	occupied := make(chan struct{})
	done := func(context.Context, *fsm.Call[map[string]int]) (fsm.Outcome, error) {
		steps.run(func() {})
		return fsm.Done("in vain"), nil
	}
	first := fsm.New[map[string]int]("first").Step("a", done).Step("b", done).
		OnError(func(_ context.Context, c *fsm.Call[map[string]int], _ error) (fsm.Outcome, error) {
			steps.run(func() {})
			if c.Step == "a" {
				return fsm.Next("b").Inline(), nil
			}
			return fsm.Done("at last"), nil
		})
	second := fsm.NewJob("second", func(context.Context, *fsm.JobCall[none]) (int, error) {
		steps.run(func() { close(occupied) })
		return 0, nil
	})
	h := open(t, func(c *Config) { c.Concurrency = 1 }, first, second)
	var refusals atomic.Int64
	h.refuse = func(o pg.Outcome) error {
		if o.ID != 1 || string(o.Result) != `"in vain"` {
			return nil
		}
		<-occupied // so the slot was given up
		refusals.Add(1)
		return &actors.RefusedError{Err: errors.New("22P02: bad thing")}
	}
	h.table.insert(pg.Claimed{Machine: "first", Version: 1, Step: "a"}, pg.Claimed{Machine: "second", Version: 1, Step: fsm.JobStep})
	h.send(actors.Poke{Queue: "q"})
	h.until("all is done", func() bool { return h.table.look(1).status == pg.Done && h.table.look(2).status == pg.Done })
	if n := refusals.Load(); n != 2 {
		t.Errorf("%d outcomes were refused", n)
	}
	if n := steps.most.Load(); n != 1 {
		t.Errorf("%d pieces of user code ran at once", n)
	}
}

// TestAWaitForASlotIsInterrupted by a cancel, and ended when the row is lost: with all slots taken for hours, the end of an
// instance does not wait for one. Whoever has lost the row runs no code for it.
func TestAWaitForASlotIsInterrupted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cause error
		ended func(h *house) bool
	}{
		"by a cancel": {fsm.ErrCancelled, func(h *house) bool { return h.table.look(1).status == pg.Failed }},
		"by a loss":   {fsm.ErrLeaseLost, func(h *house) bool { return h.counts.Stale.Load() == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			long, other := newBlocking("long"), make(chan struct{})
			occupied := make(chan struct{})
			var handled atomic.Bool
			first := fsm.New[map[string]int]("first").Step("a", func(context.Context, *fsm.Call[map[string]int]) (fsm.Outcome, error) {
				return fsm.Done("first"), nil
			}).OnError(func(context.Context, *fsm.Call[map[string]int], error) (fsm.Outcome, error) {
				handled.Store(true)
				return fsm.Done("second"), nil
			})
			second := fsm.NewJob("second", func(ctx context.Context, _ *fsm.JobCall[none]) (int, error) {
				close(occupied)
				<-ctx.Done()
				close(other)
				<-long.goOn
				return 0, nil
			})
			h := open(t, func(c *Config) { c.Concurrency = 1 }, first, second)
			defer close(long.goOn)
			var refused atomic.Bool
			h.refuse = func(o pg.Outcome) error {
				if o.ID != 1 || refused.Swap(true) {
					return nil
				}
				<-occupied
				for id := range int64(2) { // the second hears of it after the first has
					h.system.Root.Send(h.child(actors.NameSteps), actors.CancelStep{ID: id + 1, Cause: test.cause})
				}
				<-other
				return &actors.RefusedError{Err: errors.New("22P02: bad thing")}
			}
			h.table.insert(pg.Claimed{Machine: "first", Version: 1, Step: "a"}, pg.Claimed{Machine: "second", Version: 1, Step: fsm.JobStep})
			h.send(actors.Poke{Queue: "q"})
			h.until("the first has ended although the slot is taken", func() bool { return test.ended(h) })
			if handled.Load() {
				t.Error("the error handler ran without a slot")
			}
		})
	}
}

// TestChainsThatCommitHoldNoSlot: the flusher takes its time, and the steps are short. So many chains are under way as may wait for
// their commits, one step at a time as Concurrency says, and all come to their end; also when the scheduler fails again and again.
func TestChainsThatCommitHoldNoSlot(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"", "the scheduler fails"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			const chains, last = 20, 30
			var steps together
			var committing, most atomic.Int64
			h := open(t, func(c *Config) { c.Concurrency, c.Heartbeat = 1, 50*time.Millisecond },
				inline(last, func(context.Context, *fsm.Call[counting]) (fsm.Outcome, error) {
					steps.run(func() {})
					return nil, nil
				}))
			h.held = func(commit func()) { // each outcome takes a millisecond
				actors.Max(&most, committing.Add(1))
				time.AfterFunc(time.Millisecond, func() {
					committing.Add(-1)
					commit()
				})
			}
			rows := make([]pg.Claimed, chains)
			for i := range rows {
				rows[i] = pg.Claimed{Machine: "chain", Version: 1, Step: "a"}
			}
			h.table.insert(rows...)
			h.send(actors.Poke{Queue: "q"})
			if how != "" {
				for n := range int64(5) {
					h.until("steps", func() bool { return steps.ran.Load() > 50*n })
					h.system.Root.Send(h.child(actors.NameScheduler), actors.Crash{})
				}
			}
			h.until("all are done", func() bool { return h.table.count(pg.Done) == chains })
			if n := steps.ran.Load(); n != chains*last {
				t.Errorf("%d steps ran, expected %d", n, chains*last)
			}
			if n := steps.most.Load(); n != 1 {
				t.Errorf("%d steps ran at once", n)
			}
			if n := most.Load(); n < 3 {
				t.Errorf("at most %d chains were committing at once", n)
			}
		})
	}
}

// TestAChainBehindALongStepGoesBack: it has given up its slot for a commit, and a step that was always short takes long. It goes back
// to the place that it had, and on from there; from then on chains keep their slots.
func TestAChainBehindALongStepGoesBack(t *testing.T) {
	t.Parallel()
	occupied, goOn := make(chan struct{}), make(chan struct{})
	var runs atomic.Int64
	other := fsm.NewJob("other", func(context.Context, *fsm.JobCall[none]) (int, error) {
		if runs.Add(1) == 2 {
			close(occupied)
			<-goOn
		}
		return 0, nil
	})
	var slow atomic.Bool
	h := open(t, func(c *Config) { c.Concurrency = 1 }, inline(90, nil), other)
	h.held = func(commit func()) {
		if !slow.Load() {
			commit()
			return
		}
		go func() {
			select { // commits take longer than steps, until the other step has made use of that
			case <-occupied:
			case <-time.After(200 * time.Millisecond):
			}
			commit()
		}()
	}
	pair := func() int64 {
		first := h.table.insert(pg.Claimed{Machine: "chain", Version: 1, Step: "a"}, pg.Claimed{Machine: "other", Version: 1, Step: fsm.JobStep})[0]
		h.send(actors.Poke{Queue: "q"})
		return first
	}
	pair()
	h.until("it is known how long they take", func() bool { return h.table.count(pg.Done) == 2 })
	slow.Store(true)
	chain := pair()
	h.until("the chain is back", func() bool { return h.counts.Released.Load() == 1 })
	if n := h.counts.Yielded.Load(); n != 1 {
		t.Errorf("%d chains went back to their queue", n)
	}
	slow.Store(false)
	close(goOn)
	h.until("all are done", func() bool { return h.table.count(pg.Done) == 4 })
	if e := h.table.look(chain); len(e.continued) != 89 || e.Claim < 2 {
		t.Errorf("the chain went on %d times, under %d claims", len(e.continued), e.Claim)
	}
	third := pair()
	h.until("the next two are done", func() bool { return h.table.count(pg.Done) == 6 })
	if e, n := h.table.look(third), h.counts.Yielded.Load(); e.Claim != 1 || n != 1 {
		t.Errorf("the next chain took %d claims, in all %d went back", e.Claim, n)
	}
}

// TestAChainKeepsItsSlotForALimit: what the limiter grants would lie idle, or be taken twice, if there was no slot then. How long it keeps
// it counts from when it was last ready to give it up.
func TestAChainKeepsItsSlotForALimit(t *testing.T) {
	t.Parallel()
	s := &step{life: newLife(nil)}
	s.life.commitTook.Store(int64(time.Second))
	now := time.Now()
	for name, c := range map[string]struct {
		outcome pg.Outcome
		took    time.Duration
		ready   bool
	}{
		"":                  {pg.Outcome{}, time.Millisecond, true},
		"a key released":    {pg.Outcome{Key: pg.ReleaseKey}, time.Millisecond, true},
		"a rate limit":      {pg.Outcome{RateLimit: "r"}, time.Millisecond, false},
		"a new gate's slot": {pg.Outcome{Key: pg.SetKey, NewKey: "g:a"}, time.Millisecond, false},
		"a longer step":     {pg.Outcome{}, 2 * time.Second, false},
	} {
		r, begun := new(run), now.Add(-c.took)
		r.slot.runs(begun)
		c.outcome.Kind = pg.KindContinue
		s.handOver(r, &c.outcome, now) // nobody waits for a slot
		r.slot.runs(now)
		if r.slot.given || r.slot.kept.Equal(now) != c.ready || !c.ready && !r.slot.kept.Equal(begun) {
			t.Errorf("%q: kept since %v before now", name, now.Sub(r.slot.kept))
		}
	}
}

// TestChainsWithLongerStepsCountAsLong: they keep their slots for many steps, each of which is short. A chain of shorter ones beside them
// keeps its own.
func TestChainsWithLongerStepsCountAsLong(t *testing.T) {
	t.Parallel()
	medium := fsm.New[counting]("medium", fsm.Inline()).Step("a", func(_ context.Context, c *fsm.Call[counting]) (fsm.Outcome, error) {
		<-time.After(8 * time.Millisecond) // the work
		if c.State.N++; c.State.N == 30 {
			return fsm.Done(nil), nil
		}
		return fsm.Next("a"), nil
	})
	h := open(t, func(c *Config) { c.Concurrency = 2 }, inline(20, nil), medium)
	h.held = func(commit func()) { time.AfterFunc(3*time.Millisecond, commit) }
	long := pg.Claimed{Machine: "medium", Version: 1, Step: "a"}
	h.table.insert(long, pg.Claimed{Machine: "chain", Version: 1, Step: "a"})
	h.send(actors.Poke{Queue: "q"})
	h.until("it is known how long they take", func() bool { return h.table.count(pg.Done) == 2 })
	id := h.table.insert(long, pg.Claimed{Machine: "chain", Version: 1, Step: "a"}, long, long, long)[1]
	h.send(actors.Poke{Queue: "q"})
	h.until("all are done", func() bool { return h.table.count(pg.Done) == 7 })
	if e, n := h.table.look(id), h.counts.Yielded.Load(); e.Claim != 1 || n != 0 {
		t.Errorf("the chain took %d claims, %d went back", e.Claim, n)
	}
}

// TestAnAnswerIsToTheTurnThatAsked: one to an earlier wish, told late, lets no code run.
func TestAnAnswerIsToTheTurnThatAsked(t *testing.T) {
	t.Parallel()
	r := &run{row: &pg.Claimed{ID: 1}, slot: slot{answer: make(chan bool, 1)}}
	r.slot.wants.Store(2)
	if r.resume(1, true); len(r.slot.answer) > 0 {
		t.Error("an answer to the first wish is taken for one to the second")
	}
	for range 2 {
		r.resume(2, true)
	}
	if len(r.slot.answer) != 1 {
		t.Error("the answer was not told once")
	}
	if _, waits := r.wish(); waits {
		t.Error("it still waits")
	}
}
