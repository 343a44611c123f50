package gendurabletest_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/gendurabletest"
	"github.com/gendurable/gendurable/internal/devpg"
	"github.com/gendurable/gendurable/pg"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/gendurable/gendurable/internal/devpg.supervise"))
}

type order struct {
	ID   int `json:"id"`
	Paid int `json:"paid"`
}

type payment struct{ Amount int }

type number struct{ N int }

var errNoPayment = errors.New("payment never came")

var checkout = fsm.New[order]("checkout", fsm.Queue("checkout")).
	Step("start", func(context.Context, *fsm.Call[order]) (fsm.Outcome, error) {
		return fsm.Await("payment").Then("ship").Timeout(24 * time.Hour), nil
	}).
	Step("ship", func(_ context.Context, c *fsm.Call[order]) (fsm.Outcome, error) {
		if len(c.Awaited) == 0 {
			return fsm.Stop(errNoPayment), nil
		}
		var p payment
		if err := c.Awaited[0].Decode(&p); err != nil {
			return nil, err
		}
		c.State.Paid = p.Amount
		return fsm.Next("done").After(time.Hour), nil
	}).
	Step("done", func(_ context.Context, c *fsm.Call[order]) (fsm.Outcome, error) {
		return fsm.Done(c.State.Paid), nil
	})

// each runs a test in the test's own transaction, in its own schema and on its own database.
func each(t *testing.T, cfg gendurabletest.Config, test func(t *testing.T, r *gendurabletest.Runner)) {
	t.Helper()
	t.Parallel()
	pool := devpg.Database(t, pg.Migrate)
	t.Run("transaction", func(t *testing.T) { test(t, gendurabletest.New(t, gendurabletest.Tx(t, pool), cfg)) })
	t.Run("database", func(t *testing.T) { test(t, gendurabletest.New(t, pool, cfg)) })
}

func TestACheckout(t *testing.T) {
	each(t, gendurabletest.Config{Machines: []fsm.Definition{checkout}}, func(t *testing.T, r *gendurabletest.Runner) {
		id := r.MustInsert(checkout.New(order{ID: 42}), fsm.CorrelationKey("order:42"))
		if got := r.Run(); got != (gendurabletest.Tally{Parked: 1}) {
			t.Errorf("ran %v", got)
		}
		r.AssertAwaiting(id, "payment")
		r.AssertStep(gendurable.Key("order:42"), "ship")
		r.MustSignal(gendurable.Key("order:42"), "payment", payment{Amount: 100}, gendurable.DedupKey("p"))
		r.MustSignal(gendurable.Key("order:42"), "payment", payment{Amount: 100}, gendurable.DedupKey("p"))
		if got := r.Run(); got != (gendurabletest.Tally{Next: 1, Done: 1}) || got.Steps() != 2 {
			t.Errorf("ran %v", got)
		}
		r.AssertDone(id)
		if got := gendurabletest.Result[int](r, id); got != 100 {
			t.Errorf("the result is %d", got)
		}
		if got := gendurabletest.State[order](r, id); got != (order{ID: 42, Paid: 100}) {
			t.Errorf("the state is %+v", got)
		}
		if got := r.Run(); got != (gendurabletest.Tally{}) {
			t.Errorf("ran %v although nothing was left", got)
		}
		if steps := r.Steps(id); len(steps) != 3 || steps[1].Step != "ship" || steps[1].To != "done" || steps[2].Outcome != gendurabletest.Done {
			t.Errorf("the history is %v", steps)
		}
	})
}

func TestTimeouts(t *testing.T) {
	each(t, gendurabletest.Config{Machines: []fsm.Definition{checkout}}, func(t *testing.T, r *gendurabletest.Runner) {
		fired, later, paid := r.MustInsert(checkout.New(order{ID: 1})), r.MustInsert(checkout.New(order{ID: 2})), r.MustInsert(checkout.New(order{ID: 3}))
		r.Run()
		if got := r.FireTimeouts(fired); got != (gendurabletest.Tally{Failed: 1}) {
			t.Errorf("ran %v", got)
		}
		r.AssertFailed(fired, errNoPayment.Error())
		r.AssertAwaiting(later, "payment")
		r.Advance(23 * time.Hour)
		r.AssertAwaiting(later, "payment")
		// A signal resets nothing: the other one times out after 24 hours, while this one sleeps for an hour, until 24:00.
		r.MustSignal(paid, "payment", payment{1})
		r.Advance(0)
		r.AssertStep(paid, "done")
		r.AssertStatus(paid, fsm.Runnable)
		if got := r.Advance(time.Hour + time.Second); got != (gendurabletest.Tally{Failed: 1, Done: 1}) {
			t.Errorf("ran %v", got)
		}
		r.AssertFailed(later, errNoPayment.Error())
		r.AssertDone(paid)
	})
}

// ticker sleeps for so many minutes and counts.
var ticker = fsm.New[order]("ticker").Step("tick", func(_ context.Context, c *fsm.Call[order]) (fsm.Outcome, error) {
	c.State.Paid++
	return fsm.Next("tick").After(time.Duration(c.State.ID) * time.Minute), nil
})

func TestAdvanceKeepsTheOrderOfTime(t *testing.T) {
	each(t, gendurabletest.Config{Machines: []fsm.Definition{ticker}, KeepDelays: true}, func(t *testing.T, r *gendurabletest.Runner) {
		three, seven := r.MustInsert(ticker.New(order{ID: 3})), r.MustInsert(ticker.New(order{ID: 7}))
		if got := r.Run(); got.Steps() != 2 {
			t.Errorf("ran %v", got)
		}
		r.Advance(15*time.Minute + time.Second)
		var order []gendurable.ID
		for _, s := range r.Steps()[2:] {
			order = append(order, s.ID)
		}
		want := []gendurable.ID{three, three, seven, three, three, seven, three} // minutes 3, 6, 7, 9, 12, 14, 15
		for i := range want {
			if len(order) != len(want) || order[i] != want[i] {
				t.Fatalf("the order is %v, want %v", order, want)
			}
		}
	})
}

var errBusy = errors.New("busy")

var flaky = fsm.NewJob("flaky", func(_ context.Context, j *fsm.JobCall[number]) (string, error) {
	if j.Attempt < j.Args.N {
		return "", errBusy
	}
	return "ok", nil
}, fsm.MaxAttempts(5))

func TestRetriesAreCollapsed(t *testing.T) {
	each(t, gendurabletest.Config{Machines: []fsm.Definition{flaky}}, func(t *testing.T, r *gendurabletest.Runner) {
		good := r.MustInsert(flaky.New(number{3}), fsm.ScheduleIn(time.Hour))
		bad := r.MustInsert(flaky.New(number{9}))
		if got := r.Run(); got != (gendurabletest.Tally{Retried: 7, Done: 1, Failed: 1}) {
			t.Errorf("ran %v", got)
		}
		if got := gendurabletest.Result[string](r, good); got != "ok" {
			t.Errorf("the result is %q", got)
		}
		r.AssertFailed(bad, errBusy.Error())
		if first := r.Steps(good)[0]; !errors.Is(first.Err, errBusy) || first.Outcome != gendurabletest.Retried {
			t.Errorf("the first attempt is %v", first)
		}
	})
}

var page = fsm.NewJob("page", func(_ context.Context, j *fsm.JobCall[number]) (int, error) { return 2 * j.Args.N, nil })

var book = fsm.New[order]("book").
	Step("split", func(context.Context, *fsm.Call[order]) (fsm.Outcome, error) {
		return fsm.ScheduleChildren(page.New(number{1}), page.New(number{2}), page.New(number{3})).Then("sum"), nil
	}).
	Step("sum", func(_ context.Context, c *fsm.Call[order]) (fsm.Outcome, error) {
		sum := 0
		for _, child := range c.Children {
			var n int
			if err := child.DecodeResult(&n); err != nil {
				return nil, err
			}
			sum += n
		}
		return fsm.Done(sum), nil
	})

func TestChildren(t *testing.T) {
	each(t, gendurabletest.Config{Machines: []fsm.Definition{book, page}}, func(t *testing.T, r *gendurabletest.Runner) {
		id := r.MustInsert(book.New(order{}))
		if got := r.Run(); got != (gendurabletest.Tally{FannedOut: 1, Done: 4}) {
			t.Errorf("ran %v", got)
		}
		if got := gendurabletest.Result[int](r, id); got != 12 {
			t.Errorf("the sum is %d", got)
		}
		if children := r.Children(id); len(children) != 3 || children[2].ParentID != id {
			t.Errorf("the children are %v", children)
		}
	})
}

// Each step's code runs twice, its outcome counts once.
func TestCrashes(t *testing.T) {
	runs := map[string]int{}
	note := func(next fsm.Outcome) fsm.StepFunc[order] {
		return func(_ context.Context, c *fsm.Call[order]) (fsm.Outcome, error) {
			runs[c.Step]++
			c.State.Paid++
			return next, nil
		}
	}
	m := fsm.New[order]("crashing").Step("a", note(fsm.Next("b"))).Step("b", note(fsm.Done(nil)))
	each(t, gendurabletest.Config{Machines: []fsm.Definition{m}, CrashSteps: true}, func(t *testing.T, r *gendurabletest.Runner) {
		clear(runs)
		id := r.MustInsert(m.New(order{}))
		if got := r.Run(); got != (gendurabletest.Tally{Next: 1, Done: 1, Lost: 2}) || runs["a"] != 2 || runs["b"] != 2 {
			t.Errorf("ran %v: %v", got, runs)
		}
		if got := gendurabletest.State[order](r, id).Paid; got != 1 { // what is stored is the state that b began with
			t.Errorf("the state was changed %d times", got)
		}
	})
}

// A step whose goroutine ends is run again, and one that ignores its timeout is given up.
func TestLostSteps(t *testing.T) {
	t.Parallel()
	var vanished, ignored atomic.Bool
	end := make(chan struct{})
	m := fsm.New[order]("losing").
		Step("vanish", func(context.Context, *fsm.Call[order]) (fsm.Outcome, error) {
			if !vanished.Swap(true) {
				runtime.Goexit()
			}
			return fsm.Next("stubborn"), nil
		}).
		Step("stubborn", func(context.Context, *fsm.Call[order]) (fsm.Outcome, error) {
			if !ignored.Swap(true) {
				<-end
			}
			return fsm.Next("last"), nil
		}, fsm.Timeout(time.Millisecond)).
		Step("last", func(context.Context, *fsm.Call[order]) (fsm.Outcome, error) { return fsm.Done(nil), nil }).
		// On a busy machine the second run may miss its timeout as well.
		OnError(func(context.Context, *fsm.Call[order], error) (fsm.Outcome, error) { return fsm.Next("last"), nil })
	t.Cleanup(func() { close(end) })
	r := gendurabletest.New(t, devpg.Database(t, pg.Migrate), gendurabletest.Config{Machines: []fsm.Definition{m}, StepGrace: 100 * time.Millisecond})
	id := r.MustInsert(m.New(order{}))
	if got := r.Run(); got.Lost < 2 || got.Next != 2 || got.Done != 1 {
		t.Errorf("ran %v", got)
	}
	r.AssertDone(id)
}

// A step may use the Runner, also for what waits for other instances.
func TestStepsUseTheRunner(t *testing.T) {
	var r *gendurabletest.Runner
	m := fsm.New[order]("asking").Step("ask", func(ctx context.Context, c *fsm.Call[order]) (fsm.Outcome, error) {
		id, err := r.Insert(ctx, page.New(number{21}))
		if err != nil {
			return nil, err
		}
		settled, err := r.Await(ctx, id)
		if err != nil {
			return nil, err
		}
		return fsm.Done(settled.Result), nil
	})
	each(t, gendurabletest.Config{Machines: []fsm.Definition{m, page}}, func(t *testing.T, runner *gendurabletest.Runner) {
		r = runner
		id := r.MustInsert(m.New(order{}))
		if got := r.Run(); got != (gendurabletest.Tally{Done: 2}) {
			t.Errorf("ran %v", got)
		}
		if got := gendurabletest.Result[int](r, id); got != 42 {
			t.Errorf("the result is %d", got)
		}
	})
}

func TestCancelled(t *testing.T) {
	var r *gendurabletest.Runner
	m := fsm.New[order]("cancelled").Step("a", func(ctx context.Context, c *fsm.Call[order]) (fsm.Outcome, error) {
		_, err := r.Cancel(ctx, gendurable.ID(c.ID), "enough")
		return fsm.Next("a"), err
	})
	each(t, gendurabletest.Config{Machines: []fsm.Definition{m}}, func(t *testing.T, runner *gendurabletest.Runner) {
		r = runner
		id := r.MustInsert(m.New(order{}))
		if got := r.Run(); got != (gendurabletest.Tally{Cancelled: 1}) {
			t.Errorf("ran %v", got)
		}
		r.AssertFailed(id, "enough")
	})
}

// What a test's transaction does is gone with it, and nobody else sees it.
func TestTransactionsStandApart(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t, pg.Migrate)
	cfg := gendurabletest.Config{Machines: []fsm.Definition{page}}
	t.Run("inside", func(t *testing.T) {
		r := gendurabletest.New(t, gendurabletest.Tx(t, pool), cfg)
		r.AssertDone(func() gendurable.ID { id := r.MustInsert(page.New(number{1})); r.Run(); return id }())
		other := gendurabletest.New(t, pool, cfg)
		if got := other.Run(); got.Steps() != 0 {
			t.Errorf("another Runner ran %v", got)
		}
	})
	if n := rows(t, pool, "gen_durable"); n != 0 {
		t.Errorf("%d rows outlive the test", n)
	}
}

// Limits that the test names exist, without a bound; those that are stored stay as they are, and nothing is stored.
func TestLimitsExist(t *testing.T) {
	t.Parallel()
	tx := gendurabletest.Tx(t, devpg.Database(t, pg.Migrate))
	if _, err := tx.Exec(t.Context(), `INSERT INTO gen_durable_bucket_configs VALUES ('rate', 'mail', 1, 2, 1)`); err != nil {
		t.Fatal(err)
	}
	r := gendurabletest.New(t, tx, gendurabletest.Config{Machines: []fsm.Definition{page}, RateLimits: []string{"sms", "mail", "sms"}})
	other, err := gendurable.NewClient(t.Context(), tx, gendurable.ClientConfig{Limiter: r.Limiter()})
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := gendurable.NewClient(t.Context(), tx, gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		client *gendurable.Client
		limit  string
		weight float64
		ok     bool
	}{{r.Client, "sms", 1e6, true}, {r.Client, "mail", 2, true}, {r.Client, "mail", 3, false}, {r.Client, "fax", 1, false}, {other, "sms", 1e6, true}, {stranger, "sms", 1, false}} {
		_, err := c.client.Insert(t.Context(), page.New(number{1}), fsm.RateLimit(c.limit, c.weight))
		if c.ok != (err == nil) || err != nil && !errors.Is(err, gendurable.ErrInvalid) {
			t.Errorf("%v of %q: %v", c.weight, c.limit, err)
		}
	}
	if got := r.Run(); got != (gendurabletest.Tally{Done: 3}) {
		t.Errorf("ran %v", got)
	}
	var stored int
	if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM gen_durable_bucket_configs`).Scan(&stored); err != nil || stored != 1 {
		t.Errorf("%d limits are stored, %v", stored, err)
	}
}

// Runners in transactions of their own that name the same limits do not wait for each other, nor does one in the test that an
// outer test's Runner is in.
func TestRunnersShareALimit(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t, pg.Migrate)
	limited := fsm.NewJob("limited", func(_ context.Context, j *fsm.JobCall[number]) (int, error) { return j.Args.N, nil }, fsm.RateLimit("mail"))
	cfg := gendurabletest.Config{Machines: []fsm.Definition{limited}, RateLimits: []string{"sms"}}
	open := func() *gendurabletest.Runner {
		tx := gendurabletest.Tx(t, pool)
		if _, err := tx.Exec(t.Context(), `SET LOCAL lock_timeout = '1min'`); err != nil { // whoever waits, waits for ever
			t.Fatal(err)
		}
		return gendurabletest.New(t, tx, cfg)
	}
	runners := []*gendurabletest.Runner{open(), open()}
	for _, r := range runners {
		id := r.MustInsert(limited.New(number{7}))
		if got := r.Run(); got != (gendurabletest.Tally{Done: 1}) {
			t.Errorf("ran %v", got)
		}
		r.AssertDone(id)
	}
}

func TestSchema(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t)
	var schema string
	t.Run("inside", func(t *testing.T) {
		schema = gendurabletest.Schema(t, pool)
		r := gendurabletest.New(t, pool, gendurabletest.Config{Machines: []fsm.Definition{page}, Schema: schema})
		id := r.MustInsert(page.New(number{1}))
		r.Run()
		r.AssertDone(id)
		if n := rows(t, pool, schema+".gen_durable"); n != 1 {
			t.Errorf("%d rows in the schema", n)
		}
	})
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname = $1", schema).Scan(&n); err != nil || n != 0 {
		t.Errorf("the schema is still there (%v)", err)
	}
}

func rows(t *testing.T, pool *pgxpool.Pool, table string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
