package gendurable_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// captor runs a machine "work" in the queue of that name, on one engine, or on the first of two. Each instance of it is the only
// child of a family, has a correlation key, and a key of a gate with one slot or of none; the second engine runs the families.
type captor struct {
	t        *testing.T
	pool     *pgxpool.Pool
	family   *fsm.Machine[number]
	runs     *gendurable.Engine   // work
	breeds   *gendurable.Engine   // families
	everyone []*gendurable.Client // who cancels, all at once
}

func keysOf(n int) (correlation, concurrency string) {
	return fmt.Sprint("work:", n), fmt.Sprint([]string{"g:", "solo:"}[n%2], n)
}

func newCaptor(t *testing.T, engines int, work *fsm.Machine[number], more ...fsm.Definition) *captor {
	t.Helper()
	c := &captor{t: t, pool: database(t), family: familyOf(func(int) *fsm.Machine[number] { return work })}
	cfg := gendurable.Config{
		Machines: append(more, work, c.family, double), Gates: map[string]gendurable.Gate{"g": {Limit: 1}},
		Pokes: gendurable.PokePostgres, Heartbeat: time.Second, Lease: time.Minute, PollIdle: time.Second,
	}
	working, breeding := map[string]gendurable.Queue{"work": {Concurrency: 8}}, map[string]gendurable.Queue{"families": {}}
	if engines == 1 {
		working["families"] = breeding["families"]
		cfg.Queues = working
		c.runs = start(t, c.pool, cfg)
		c.breeds = c.runs
	} else {
		cfg.Queues, cfg.InsertQueues = working, []string{"families"}
		c.runs = start(t, c.pool, cfg)
		cfg.Queues, cfg.InsertQueues = breeding, []string{"work"}
		c.breeds = start(t, c.pool, cfg)
	}
	c.everyone = []*gendurable.Client{c.runs.Client, c.breeds.Client}
	return c
}

// familyOf is a machine with one child, of the machine that belongs to its number.
func familyOf(child func(n int) *fsm.Machine[number]) *fsm.Machine[number] {
	return fsm.New[number]("family", fsm.Queue("families"), fsm.History()).
		Step("split", func(_ context.Context, f *fsm.Call[number]) (fsm.Outcome, error) {
			correlation, concurrency := keysOf(f.State.N)
			return fsm.ScheduleChildren(child(f.State.N).New(f.State).With(fsm.CorrelationKey(correlation), fsm.ConcurrencyKey(concurrency))).Then("join"), nil
		}).
		Step("join", func(_ context.Context, f *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.Done(len(f.Children)), nil
		})
}

// cancel has everyone cancel the instance at the same time. They are to hear one of the answers, or that it is too late, and at
// most one that it has ended.
func (c *captor) cancel(n int, want ...gendurable.Cancellation) {
	c.t.Helper()
	key, _ := keysOf(n)
	in, err := c.runs.Get(c.t.Context(), gendurable.Key(key))
	if err != nil {
		c.t.Fatal(err)
	}
	var wg sync.WaitGroup
	answers := make([]gendurable.Cancellation, len(c.everyone))
	for i, engine := range c.everyone {
		wg.Go(func() {
			var err error
			if answers[i], err = engine.Cancel(c.t.Context(), in.ID, "why", gendurable.Cascade()); err != nil {
				c.t.Error(err)
			}
		})
	}
	wg.Wait()
	expected, ended := 0, 0
	for _, a := range answers {
		switch {
		case slices.Contains(want, a):
			expected++
		case a != gendurable.CancelTooLate: // of two requests the second may come when the first is fulfilled
			c.t.Errorf("a cancel of %s came to %q, expected %q", key, a, want)
		}
		if a == gendurable.CancelEnded {
			ended++
		}
	}
	if expected == 0 || ended > 1 {
		c.t.Errorf("the cancels of %s came to %q, expected %q", key, answers, want)
	}
}

// free expects that an instance has been ended by the cancel, exactly once, that its family has gone on, exactly once, and that
// its keys are to be had.
func (c *captor) free(n int, id, family gendurable.ID) {
	c.t.Helper()
	ctx := c.t.Context()
	if s := await(c.t, c.breeds, id, gendurable.UntilTerminal()); s.Error != "cancelled: why" {
		c.t.Errorf("it settled as %+v", s)
	}
	if s := await(c.t, c.runs, family, gendurable.UntilTerminal()); string(s.Result) != "1" {
		c.t.Errorf("its family settled as %+v", s)
	}
	correlation, concurrency := keysOf(n)
	next := insert(c.t, c.breeds, double.New(number{n}), fsm.Queue("work"), fsm.CorrelationKey(correlation), fsm.ConcurrencyKey(concurrency))
	if s := await(c.t, c.runs, next, gendurable.UntilTerminal()); !s.Done() {
		c.t.Errorf("the next with its keys settled as %+v", s)
	}
	ends := 0
	transitions, err := c.runs.History(ctx, id, gendurable.HistoryPage{})
	for _, tr := range transitions {
		if tr.Status == fsm.StatusFailed || tr.Status == fsm.StatusDone {
			ends++
		}
	}
	if last := len(transitions) - 1; err != nil || ends != 1 || transitions[last].Outcome != "cancelled" {
		c.t.Errorf("the history of the cancelled is %+v, %v", transitions, err)
	}
	if transitions, err = c.breeds.History(ctx, family, gendurable.HistoryPage{}); err != nil || len(transitions) != 2 {
		c.t.Errorf("the history of its family is %+v, %v", transitions, err)
	}
}

// rest expects that nothing is left to do, and no slot taken.
func (c *captor) rest() {
	c.t.Helper()
	atRest(c.t, c.pool)
	if n := count(c.t, c.pool, `SELECT count(*) FROM gen_durable WHERE status NOT IN ('done', 'failed') OR concurrency_shard IS NOT NULL OR children_pending <> 0`); n != 0 {
		c.t.Errorf("%d instances are not at rest", n)
	}
	if n := count(c.t, c.pool, `SELECT count(*) FROM signals`); n != 0 {
		c.t.Errorf("%d signals are left", n)
	}
}

// never is a machine that waits for a signal which does not come.
var never = fsm.New[number]("never", fsm.Queue("work")).
	Step("wait", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
		return fsm.Await("never").Then("wait"), nil
	})

// place is where an instance is when it is cancelled.
type place struct {
	name string
	step fsm.StepFunc[number]
	opts []fsm.Option
	as   fsm.Status
	from int // the N of its state by then, at least
	want gendurable.Cancellation
}

var places = []place{
	{"running", func(ctx context.Context, _ *fsm.Call[number]) (fsm.Outcome, error) {
		<-ctx.Done()
		return fsm.Done("all the same"), nil
	}, nil, fsm.Executing, 0, gendurable.CancelRequested},
	{"inline", func(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
		if c.State.N += 1000; c.State.N > 5000 {
			<-ctx.Done()
		}
		return fsm.Next("work"), nil
	}, []fsm.Option{fsm.Inline()}, fsm.Executing, 4000, gendurable.CancelRequested},
	{"parked", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
		return fsm.Await("never").Then("work"), nil
	}, nil, fsm.AwaitingSignal, 0, gendurable.CancelEnded},
	{"fanned out", func(context.Context, *fsm.Call[number]) (fsm.Outcome, error) {
		return fsm.ScheduleChildren(never.New(number{}), never.New(number{})).Then("work"), nil
	}, nil, fsm.AwaitingChildren, 0, gendurable.CancelEnded},
}

func (p place) machine() *fsm.Machine[number] {
	return fsm.New[number](p.name, append([]fsm.Option{fsm.Queue("work"), fsm.History()}, p.opts...)...).Step("work", p.step)
}

// reached waits until so many instances are there. One that executes has its slot: another process may count the gates just when
// it asks for one, and then it is given back, to be claimed again.
func (p place) reached(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d are %s", n, p.name), func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable
			WHERE fsm = $1 AND status = $2::text::durable_status AND (state->>'n')::int >= $3 AND concurrency_shard IS DISTINCT FROM -1`, p.name, string(p.as), p.from) == n
	})
}

// TestCancelWhereverItIs: an instance that runs, is parked, waits for children or goes from step to step in one task ends once,
// frees its keys and slot, and releases its parent; cancelled on its own node and from another.
func TestCancelWhereverItIs(t *testing.T) {
	t.Parallel()
	for _, place := range places {
		for engines := 1; engines <= 2; engines++ {
			t.Run(fmt.Sprintf("%s/%d", place.name, engines), func(t *testing.T) {
				t.Parallel()
				c := newCaptor(t, engines, place.machine(), never)
				families := []gendurable.ID{insert(t, c.breeds, c.family.New(number{0})), insert(t, c.breeds, c.family.New(number{1}))}
				place.reached(t, c.pool, 2)
				for n, family := range families {
					key, _ := keysOf(n)
					in, err := c.runs.Get(t.Context(), gendurable.Key(key))
					if err != nil {
						t.Fatal(err)
					}
					if err := c.breeds.Signal(t.Context(), in.ID, "unasked", nil); err != nil {
						t.Fatal(err)
					}
					c.cancel(n, place.want)
					c.free(n, in.ID, family)
				}
				c.rest()
			})
		}
	}
}

// press lets so many steps pass, and holds those behind them up.
type press struct {
	mu     sync.Mutex
	left   int
	open   chan struct{}
	begun  []int64
	inside []int64 // of those, the ones that it holds up
}

func (p *press) step(ctx context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
	p.mu.Lock()
	p.left--
	held, open := p.left < 0, p.open
	p.begun = append(p.begun, c.ID)
	if held {
		p.inside = append(p.inside, c.ID)
	}
	p.mu.Unlock()
	if held {
		select {
		case <-open:
		case <-ctx.Done():
		}
	}
	return fsm.Done(1), nil
}

func (p *press) shutAfter(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.inside, p.open = n, nil, make(chan struct{})
}

func (p *press) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = 1 << 30
	close(p.open)
}

func (p *press) haveBegun() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int64(nil), p.begun...)
}

func (p *press) heldUp() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int64(nil), p.inside...)
}

// TestCancelOfWhatIsBuffered: the same of rows that were claimed ahead and wait for a slot of their scheduler.
func TestCancelOfWhatIsBuffered(t *testing.T) {
	t.Parallel()
	for engines := 1; engines <= 2; engines++ {
		t.Run(fmt.Sprint(engines), func(t *testing.T) {
			t.Parallel()
			p := new(press)
			work := fsm.New[number]("work", fsm.Queue("work"), fsm.History()).Step("work", p.step)
			c := newCaptor(t, engines, work)
			type row struct {
				id, family gendurable.ID
				n          int
			}
			var buffered []row
			for total := 0; len(buffered) == 0; {
				// How far a scheduler claims ahead follows from how fast it was. On a slow day it may take more than one round.
				if total >= 30*120 {
					t.Fatal("in thirty rounds nothing was claimed ahead")
				}
				p.shutAfter(60)
				total += c.breed(total, 120)
				eventually(t, "all slots are held up", func() bool { return len(p.heldUp()) == 8 })
				rows, err := c.pool.Query(t.Context(), `SELECT id, parent_id, (state->>'n')::int FROM gen_durable
					WHERE fsm = 'work' AND status = 'executing' AND id <> ALL ($1) AND concurrency_shard IS DISTINCT FROM -1`, p.haveBegun())
				if err != nil {
					t.Fatal(err)
				}
				for rows.Next() {
					var r row
					if err := rows.Scan(&r.id, &r.family, &r.n); err != nil {
						t.Fatal(err)
					}
					buffered = append(buffered, r)
				}
				if err := rows.Err(); err != nil {
					t.Fatal(err)
				}
				if len(buffered) == 0 {
					p.release()
					terminal(t, c.pool, 2*total)
				}
			}
			buffered = buffered[:min(len(buffered), 4)]
			for _, r := range buffered {
				// A late word of the pause has the scheduler give back what it has claimed ahead.
				c.cancel(r.n, gendurable.CancelRequested, gendurable.CancelEnded)
			}
			p.release()
			for _, r := range buffered {
				c.free(r.n, r.id, r.family)
			}
			eventually(t, "the rest is done", func() bool {
				return count(t, c.pool, `SELECT count(*) FROM gen_durable WHERE status NOT IN ('done', 'failed')`) == 0
			})
			c.rest()
		})
	}
}

// breed makes so many more instances of work, which may begin all at once.
func (c *captor) breed(from, n int) int {
	c.t.Helper()
	if err := c.breeds.Pause(c.t.Context(), "work"); err != nil {
		c.t.Fatal(err)
	}
	insts := make([]fsm.Instance, n)
	for i := range insts {
		insts[i] = c.family.New(number{from + i})
	}
	if _, err := c.breeds.InsertMany(c.t.Context(), insts); err != nil {
		c.t.Fatal(err)
	}
	eventually(c.t, "the families have their children", func() bool {
		return count(c.t, c.pool, `SELECT count(*) FROM gen_durable WHERE fsm = 'work'`) == from+n
	})
	if err := c.breeds.Resume(c.t.Context(), "work"); err != nil {
		c.t.Fatal(err)
	}
	return n
}
