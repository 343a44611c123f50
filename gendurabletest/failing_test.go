package gendurabletest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/gendurabletest"
	"github.com/gendurable/gendurable/internal/devpg"
	"github.com/gendurable/gendurable/pg"
)

// failing is a test that may fail without failing the one it is in.
type failing struct {
	testing.TB
	failed bool
	said   strings.Builder
}

func (f *failing) Errorf(format string, args ...any) {
	f.failed = true
	fmt.Fprintf(&f.said, format+"\n", args...)
}
func (f *failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}
func (f *failing) Logf(format string, args ...any) { fmt.Fprintf(&f.said, format+"\n", args...) }
func (f *failing) Fatal(args ...any)               { f.Fatalf("%s", fmt.Sprint(args...)) }
func (f *failing) Fail()                           { f.failed = true }
func (f *failing) FailNow()                        { f.failed = true; runtime.Goexit() }
func (f *failing) Failed() bool                    { return f.failed }

// expectFailure runs a test that must fail, and say these things.
func expectFailure(t *testing.T, test func(t testing.TB), says ...string) {
	t.Helper()
	f := &failing{TB: t}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		test(f)
	}()
	<-ended
	if !f.failed {
		t.Errorf("did not fail: %s", f.said.String())
	}
	for _, want := range says {
		if !strings.Contains(f.said.String(), want) {
			t.Errorf("said %q, without %q", f.said.String(), want)
		}
	}
}

func TestRunawaysFail(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t, pg.Migrate)
	expectFailure(t, func(t testing.TB) {
		r := gendurabletest.New(t, gendurabletest.Tx(t, pool), gendurabletest.Config{Machines: []fsm.Definition{ticker}, MaxSteps: 5})
		r.MustInsert(ticker.New(order{ID: 60}))
		r.Run()
	}, "5 steps ran", `"tick": next, to "tick"`, "KeepDelays")
}

func TestAssertionsSayWhatHappened(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t, pg.Migrate)
	runner := func(t testing.TB) *gendurabletest.Runner {
		return gendurabletest.New(t, gendurabletest.Tx(t, pool), gendurabletest.Config{Machines: []fsm.Definition{checkout, flaky}})
	}
	expectFailure(t, func(t testing.TB) {
		r := runner(t)
		id := r.MustInsert(checkout.New(order{}))
		r.Run()
		r.AssertDone(id)
		r.AssertStep(id, "done")
		r.AssertAwaiting(id, "money")
		r.AssertFailed(id, "")
		gendurabletest.Result[int](r, id)
	}, "done: checkout/1 is awaiting_signal", `at step "done"`, `awaiting ["money"]`, "failed with", `"start": parked, to "ship"`)
	expectFailure(t, func(t testing.TB) {
		r := runner(t)
		id := r.MustInsert(flaky.New(number{0}))
		r.Run()
		r.FireTimeouts(id)
	}, "no timeout to fire", "flaky/1 is done")
	expectFailure(t, func(t testing.TB) {
		r := runner(t)
		id := r.MustInsert(flaky.New(number{0}))
		r.Run()
		gendurabletest.Result[int](r, id)
	}, "decode the result", `"ok"`)
	expectFailure(t, func(t testing.TB) { runner(t).MustSignal(gendurable.Key("nobody"), "payment", nil) }, "no live instance")
	expectFailure(t, func(t testing.TB) { runner(t).MustInsert(page.New(number{1})) }, "unknown machine")
	expectFailure(t, func(t testing.TB) {
		tx := gendurabletest.Tx(t, pool)
		nested, err := tx.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		gendurabletest.New(t, nested, gendurabletest.Config{})
	}, "savepoint")
}

// A step that ends the test ends it.
func TestFatalInAStep(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t, pg.Migrate)
	expectFailure(t, func(t testing.TB) {
		m := fsm.New[order]("fatal").Step("a", func(context.Context, *fsm.Call[order]) (fsm.Outcome, error) {
			t.Fatal("seen enough")
			return nil, nil
		})
		r := gendurabletest.New(t, gendurabletest.Tx(t, pool), gendurabletest.Config{Machines: []fsm.Definition{m}})
		r.MustInsert(m.New(order{}))
		r.Run()
		t.Errorf("went on")
	}, "seen enough")
}

// What a Runner cannot run stays as it is.
func TestUnknownMachinesStay(t *testing.T) {
	t.Parallel()
	tx := gendurabletest.Tx(t, devpg.Database(t, pg.Migrate))
	all := gendurabletest.New(t, tx, gendurabletest.Config{Machines: []fsm.Definition{page, flaky}})
	unknown, known := all.MustInsert(page.New(number{1})), all.MustInsert(flaky.New(number{0}))
	some := gendurabletest.New(t, tx, gendurabletest.Config{Machines: []fsm.Definition{flaky}})
	if got := some.Run(); got != (gendurabletest.Tally{Done: 1, Unknown: 1}) || got.Steps() != 1 {
		t.Errorf("ran %v", got)
	}
	all.AssertStatus(unknown, fsm.Runnable)
	all.AssertDone(known)
	expectFailure(t, func(t testing.TB) {
		text := fsm.NewJob("page", func(context.Context, *fsm.JobCall[struct{ N string }]) (int, error) { return 0, nil })
		gendurabletest.New(t, tx, gendurabletest.Config{Machines: []fsm.Definition{text}}).Run()
	}, "does not fit")
}

// An outcome that the database refuses goes to the error handler.
func TestRefusedOutcomes(t *testing.T) {
	t.Parallel()
	pool := devpg.Database(t, pg.Migrate)
	if _, err := pool.Exec(t.Context(), `ALTER TABLE gen_durable ADD CHECK (state->>'paid' <> '13')`); err != nil {
		t.Fatal(err)
	}
	m := fsm.New[order]("refused").Step("a", func(_ context.Context, c *fsm.Call[order]) (fsm.Outcome, error) {
		c.State.Paid = 13
		return fsm.Next("a"), nil
	}).OnError(func(_ context.Context, _ *fsm.Call[order], err error) (fsm.Outcome, error) {
		return fsm.Done(err.Error()), nil
	})
	r := gendurabletest.New(t, pool, gendurabletest.Config{Machines: []fsm.Definition{m}})
	id := r.MustInsert(m.New(order{}))
	r.Run()
	if got := gendurabletest.Result[string](r, id); !strings.Contains(got, "refused the outcome") {
		t.Errorf("the handler got %q", got)
	}
	expectFailure(t, func(t testing.TB) {
		r := gendurabletest.New(t, gendurabletest.Tx(t, pool), gendurabletest.Config{Machines: []fsm.Definition{m}})
		r.MustInsert(m.New(order{}))
		r.Run()
	}, "check constraint")
}
