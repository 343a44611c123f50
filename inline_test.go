package gendurable_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// journal notes what ran, in order.
type journal struct {
	mu    sync.Mutex
	notes []string
}

func (j *journal) note(what string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.notes = append(j.notes, what)
}

func (j *journal) read() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.notes)
}

// counter is a machine that counts to last in steps that run in one task, each of which may do more.
func counter(name string, last int, each func(ctx context.Context, c *fsm.Call[number]) error, opts ...fsm.Option) *fsm.Machine[number] {
	return fsm.New[number](name, append(opts, fsm.Inline())...).
		Step("count", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			c.State.N++
			if each != nil {
				if err := each(ctx, c); err != nil {
					return nil, err
				}
			}
			if c.State.N < last {
				return fsm.Next("count"), nil
			}
			return fsm.Done(c.State.N), nil
		})
}

// TestAChainIsOneClaim: ten steps of a row that has neither inbox nor children are one claim and ten commits.
func TestAChainIsOneClaim(t *testing.T) {
	t.Parallel()
	pool := database(t)
	m := counter("m", 10, nil)
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m}})
	if s := await(t, engine, insert(t, engine, m.New(number{})), gendurable.UntilTerminal()); string(s.Result) != "10" {
		t.Errorf("it settled as %+v", s)
	}
	// They are counted after their commits, which the await may have seen already.
	eventually(t, "the last outcome is counted", func() bool { return engine.Stats().Outcomes >= 10 })
	stats := engine.Stats()
	q := stats.Queues["default"]
	if stats.Flushes != 10 || stats.Outcomes != 10 || q.ClaimedRows != 1 || q.Continued != 9 || q.Yielded != 0 {
		t.Errorf("%d flushes, %d outcomes, %d claimed, %d continued, %d yielded", stats.Flushes, stats.Outcomes, q.ClaimedRows, q.Continued, q.Yielded)
	}
	if n := count(t, pool, `SELECT claims FROM gen_durable`); n != 1 {
		t.Errorf("the row counts %d claims", n)
	}
}

// TestAChainSeesWhatArrives: a signal that is sent while a step runs is in the next step's inbox, and stays for an await.
func TestAChainSeesWhatArrives(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var engine *gendurable.Engine
	kid := fsm.NewJob("kid", func(context.Context, *fsm.JobCall[number]) (int, error) { return 1, nil })
	m := fsm.New[number]("m", fsm.Inline()).
		Step("begin", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.Next("look"), engine.Signal(ctx, gendurable.ID(c.ID), "one", number{1})
		}).
		Step("look", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			if len(c.Inbox) != 1 || c.Inbox[0].Name != "one" || len(c.Awaited) != 0 {
				return fsm.Stop(errors.New("the signal is not there")), nil
			}
			return fsm.Await("one").Then("awaited"), nil
		}).
		Step("awaited", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			if len(c.Awaited) != 1 {
				return fsm.Stop(errors.New("the signal was not handed over")), nil
			}
			return fsm.Next("consumed"), engine.Signal(ctx, gendurable.ID(c.ID), "two", number{2})
		}).
		Step("consumed", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			if len(c.Inbox) != 1 || c.Inbox[0].Name != "two" {
				return fsm.Stop(errors.New("the handed signal was not consumed, or the new one is not there")), nil
			}
			return fsm.ScheduleChildren(kid.New(number{1}), kid.New(number{2})).Then("joined"), nil
		}).
		Step("joined", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.Next("later"), nil
		}).
		Step("later", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			if len(c.Children) != 2 || c.ChildCounts[fsm.StatusDone] != 2 {
				return fsm.Stop(errors.New("the children are not seen")), nil
			}
			return fsm.Done("all seen"), nil
		})
	engine = start(t, pool, gendurable.Config{Machines: []fsm.Definition{m, kid}})
	s := await(t, engine, insert(t, engine, m.New(number{})), gendurable.UntilTerminal())
	if string(s.Result) != `"all seen"` {
		t.Errorf("it settled as %+v", s)
	}
	if n := engine.Stats().Queues["default"].Continued; n != 3 {
		t.Errorf("%d steps went on", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM signals`); n != 0 {
		t.Errorf("%d signals are left", n)
	}
}

// TestAChainLetsUrgentWorkIn: after InlineLimit steps the row goes back to its queue, and what is more urgent runs first, if it did not
// run before in the time of a commit.
func TestAChainLetsUrgentWorkIn(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var engine *gendurable.Engine
	var ran journal
	urgent := fsm.NewJob("urgent", func(context.Context, *fsm.JobCall[number]) (int, error) {
		ran.note("urgent")
		return 0, nil
	}, fsm.Priority(-1))
	m := counter("m", 12, func(ctx context.Context, c *fsm.Call[number]) error {
		ran.note("step")
		if c.State.N != 3 {
			return nil
		}
		_, err := engine.Insert(ctx, urgent.New(number{}))
		return err
	})
	engine = start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{m, urgent}, InlineLimit: 5,
		Queues: map[string]gendurable.Queue{"default": {Concurrency: 1}},
	})
	await(t, engine, insert(t, engine, m.New(number{})), gendurable.UntilTerminal())
	if at := slices.Index(ran.read(), "urgent"); at < 3 || at > 5 || len(ran.read()) != 13 {
		t.Errorf("this ran: %v; expected the urgent one after five steps at the latest", ran.read())
	}
	if n := engine.Stats().Queues["default"].Yielded; n < 2 { // once more if it found no slot for a tenth of a second
		t.Errorf("the chain yielded %d times, expected 2", n)
	}
}

// TestAChainKeepsItsKey: K = 1 holds over the whole chain, and is free as soon as a step has released it.
func TestAChainKeepsItsKey(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var ran journal
	released, second := make(chan struct{}), make(chan struct{})
	m := fsm.New[number]("m", fsm.ConcurrencyKey("one"), fsm.Inline()).
		Step("a", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			ran.note("a")
			if c.State.N == 2 {
				close(second)
				return fsm.Done(nil), nil
			}
			return fsm.Next("b"), nil
		}).
		Step("b", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
			ran.note("b")
			return fsm.Next("c").ReleaseKey(), nil
		}).
		Step("c", func(ctx context.Context, _ *fsm.Call[number]) (fsm.Outcome, error) {
			close(released)
			<-second // runs while this one still does
			return fsm.Done(nil), nil
		})
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{m}, PollBusy: time.Hour, PollIdle: time.Hour})
	first := insert(t, engine, m.New(number{1}))
	other := insert(t, engine, m.New(number{2}))
	await(t, engine, first, gendurable.UntilTerminal())
	await(t, engine, other, gendurable.UntilTerminal())
	<-released
	if got := ran.read(); !slices.Equal(got, []string{"a", "b", "a"}) {
		t.Errorf("this ran: %v", got)
	}
}

// TestCancelInAChain: the request ends whichever step runs.
func TestCancelInAChain(t *testing.T) {
	t.Parallel()
	running := make(chan struct{})
	m := counter("m", 1000, func(ctx context.Context, c *fsm.Call[number]) error {
		if c.State.N == 4 {
			close(running)
			<-ctx.Done()
		}
		return nil
	})
	engine := start(t, database(t), gendurable.Config{Machines: []fsm.Definition{m}})
	id := insert(t, engine, m.New(number{}))
	<-running
	if _, err := engine.Cancel(t.Context(), id, "enough"); err != nil {
		t.Fatal(err)
	}
	if s := await(t, engine, id, gendurable.UntilTerminal()); s.Status != fsm.StatusFailed || s.Error != "cancelled: enough" {
		t.Errorf("it settled as %+v", s)
	}
}

// TestStopInChains: a stop in the middle of many chains loses and repeats no step, whatever actors failed meanwhile.
func TestStopInChains(t *testing.T) {
	t.Parallel()
	pool := database(t)
	var mu sync.Mutex
	runs := map[int64][]int{}
	m := counter("m", 40, func(_ context.Context, c *fsm.Call[number]) error {
		mu.Lock()
		defer mu.Unlock()
		runs[c.ID] = append(runs[c.ID], c.State.N)
		return nil
	})
	cfg := gendurable.Config{NodeName: "n", Machines: []fsm.Definition{m}, InlineLimit: 25}
	engine := start(t, pool, cfg)
	insts := make([]fsm.Instance, 50)
	for i := range insts {
		insts[i] = m.New(number{})
	}
	if _, err := engine.InsertMany(t.Context(), insts); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		eventually(t, "some steps", func() bool {
			return engine.Stats().Queues["default"].Continued >= int64(50*(n+1)/2) ||
				count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'done'`) == 50 // before the stops came to it
		})
		stop(t, engine)
		if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'executing' OR attempt > 0`); n != 0 {
			t.Errorf("%d rows are still claimed, or were tried again", n)
		}
		engine = start(t, pool, cfg)
	}
	eventually(t, "all done", func() bool { return count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'done'`) == 50 })
	for id, steps := range runs {
		if len(steps) != 40 || !slices.IsSorted(steps) {
			t.Errorf("instance %d ran %v", id, steps)
		}
	}
}
