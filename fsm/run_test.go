package fsm

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// machine is a machine of one step "a".
func machine(step StepFunc[order], opts ...Option) *Machine[order] {
	return New[order]("m", opts...).Step("a", step)
}

func input() *Input { return &Input{ID: 7, Step: "a", State: []byte(`{"id":1}`)} }

// ends checks how a run ended and returns its outcome.
func ends(t *testing.T, res Result, want Ending) *Encoded {
	t.Helper()
	if res.Ending != want {
		t.Fatalf("the run ended as %d, want %d: %v", res.Ending, want, res.Err)
	}
	if (res.Encoded != nil) != (want == Finished) || (res.Left != nil) != (want == Abandoned) {
		t.Fatalf("a result that contradicts itself: %+v", res)
	}
	return res.Encoded
}

func TestErrorsGoToTheHandler(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		step StepFunc[order]
		want string
	}{
		"error":      {func(context.Context, *Call[order]) (Outcome, error) { return nil, boom }, "boom"},
		"with both":  {func(context.Context, *Call[order]) (Outcome, error) { return Next("a"), boom }, "boom"},
		"panic":      {func(context.Context, *Call[order]) (Outcome, error) { panic("ouch") }, "panic: ouch"},
		"panic(err)": {func(context.Context, *Call[order]) (Outcome, error) { panic(boom) }, "panic: boom"},
		"panic(nil)": {func(context.Context, *Call[order]) (Outcome, error) { panic(nil) }, "panic called with nil argument"},
		"runtime error": {func(context.Context, *Call[order]) (Outcome, error) {
			var none []int
			return Next(fmt.Sprint(none[len(none)])), nil
		}, "index out of range"},
		"hostile error": {func(context.Context, *Call[order]) (Outcome, error) { return nil, (*nilError)(nil) }, "Error method panicked"},
	} {
		t.Run(name, func(t *testing.T) {
			e := ends(t, Run(t.Context(), machine(test.step).Spec(), input()), Finished)
			if e.Kind != KindStop || !strings.Contains(e.Error, test.want) {
				t.Errorf("without a handler: %+v", e)
			}
			m := machine(test.step).OnError(func(_ context.Context, _ *Call[order], err error) (Outcome, error) {
				return Retry(time.Second), nil
			})
			res := Run(t.Context(), m.Spec(), input())
			e = ends(t, res, Finished)
			if e.Kind != KindRetry || !strings.Contains(e.Error, test.want) || e.Delay != time.Second || res.Err == nil {
				t.Errorf("with a handler: %+v, %v", e, res.Err)
			}
		})
	}
}

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

func TestPanicErrorCarriesItsOrigin(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	res := Run(t.Context(), machine(func(context.Context, *Call[order]) (Outcome, error) { panic(boom) }).Spec(), input())
	var p *PanicError
	if !errors.As(res.Err, &p) || !errors.Is(res.Err, boom) || !strings.Contains(string(p.Stack), "TestPanicErrorCarriesItsOrigin") {
		t.Errorf("got %v", res.Err)
	}
	if strings.Contains(res.Encoded.Error, "goroutine") {
		t.Errorf("the stack is in the text: %s", res.Encoded.Error)
	}
}

func TestHandlerSeesTheStateAsLoaded(t *testing.T) {
	t.Parallel()
	in := input()
	in.Awaits, in.Inbox, in.MoreInbox = []string{"s"}, []Signal{{ID: 5, Name: "s"}, {ID: 6, Name: "u"}}, true
	in.Children, in.ChildCounts = []Child{{ID: 9}}, map[Status]int64{StatusDone: 1}
	loaded := string(in.State)
	m := New[*order]("m").Step("a", func(_ context.Context, c *Call[*order]) (Outcome, error) {
		c.State.Paid = 100
		return nil, errors.New("half-way")
	}).OnError(func(_ context.Context, c *Call[*order], err error) (Outcome, error) {
		if c.State.ID != 1 || c.State.Paid != 0 {
			t.Errorf("the handler got the state %+v", c.State)
		}
		if c.Awaited != nil || c.Inbox != nil || c.MoreInbox {
			t.Errorf("the handler got signals: %+v", c)
		}
		if len(c.Children) != 1 || c.ChildCounts[StatusDone] != 1 {
			t.Errorf("the handler got children %+v, %v", c.Children, c.ChildCounts)
		}
		c.State.Note = err.Error()
		return Next("a"), nil
	})
	e := ends(t, Run(t.Context(), m.Spec(), in), Finished)
	if string(e.State) != `{"id":1,"paid":0,"note":"half-way"}` || e.Error != "" {
		t.Errorf("got %s, error %q", e.State, e.Error)
	}
	if len(e.Handed) != 1 || e.Handed[0] != 5 {
		t.Errorf("its progress consumes %v", e.Handed)
	}
	if string(in.State) != loaded {
		t.Errorf("the input was changed to %s", in.State)
	}
}

func TestFailingHandlersStop(t *testing.T) {
	t.Parallel()
	fail := func(context.Context, *Call[order]) (Outcome, error) { return nil, errors.New("first") }
	for name, test := range map[string]struct {
		handler ErrorHandler[order]
		want    string
	}{
		"error":   {func(context.Context, *Call[order], error) (Outcome, error) { return nil, errors.New("second") }, "second"},
		"panic":   {func(context.Context, *Call[order], error) (Outcome, error) { panic("second") }, "panic: second"},
		"nothing": {func(context.Context, *Call[order], error) (Outcome, error) { return nil, nil }, "no outcome"},
		"invalid": {func(context.Context, *Call[order], error) (Outcome, error) { return Next("zzz"), nil }, `no "zzz"`},
	} {
		t.Run(name, func(t *testing.T) {
			e := ends(t, Run(t.Context(), machine(fail).OnError(test.handler).Spec(), input()), Finished)
			if e.Kind != KindStop || !strings.Contains(e.Error, test.want) || !strings.Contains(e.Error, "first") {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestGoexitVanishes(t *testing.T) {
	t.Parallel()
	exit := func(context.Context, *Call[order]) (Outcome, error) { runtime.Goexit(); return nil, nil }
	fail := func(context.Context, *Call[order]) (Outcome, error) { return nil, errors.New("x") }
	ends(t, Run(t.Context(), machine(exit).Spec(), input()), Vanished)
	ends(t, Run(t.Context(), machine(exit, StepTimeout(time.Hour)).Spec(), input()), Vanished)
	handler := machine(fail).OnError(func(context.Context, *Call[order], error) (Outcome, error) {
		runtime.Goexit()
		return nil, nil
	})
	ends(t, Run(t.Context(), handler.Spec(), input()), Vanished)
	ends(t, RunError(t.Context(), handler.Spec(), input(), errors.New("refused")), Vanished)
}

func TestUndecodableIsNoError(t *testing.T) {
	t.Parallel()
	var called atomic.Bool
	m := machine(func(context.Context, *Call[order]) (Outcome, error) { called.Store(true); return Done(nil), nil }).
		OnError(func(context.Context, *Call[order], error) (Outcome, error) { called.Store(true); return Done(nil), nil })
	for _, state := range []string{`{"id":"x"}`, `[1]`, `3`, `null`, `"x"`, `{`, `"[1]"`, `"{\"id\":\"x\"}"`} {
		in := input()
		in.State = []byte(state)
		if res := Run(t.Context(), m.Spec(), in); res.Ending != Undecodable || res.Err == nil {
			t.Errorf("%s: got %+v", state, res)
		}
		if res := RunError(t.Context(), m.Spec(), in, errors.New("x")); res.Ending != Undecodable || res.Err == nil {
			t.Errorf("%s: RunError gave %+v", state, res)
		}
	}
	in := input()
	in.Step = "elsewhere"
	if res := Run(t.Context(), m.Spec(), in); res.Ending != Undecodable || !strings.Contains(res.Err.Error(), `no step "elsewhere"`) {
		t.Errorf("unknown step: %+v", res)
	}
	if called.Load() {
		t.Error("user code ran")
	}
}

func TestRunErrorCallsOnlyTheHandler(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused by the database")
	m := machine(func(context.Context, *Call[order]) (Outcome, error) { t.Error("the step ran"); return nil, nil }).
		OnError(func(_ context.Context, c *Call[order], err error) (Outcome, error) {
			c.State.Note = "handled"
			return Next("a"), errOther(err, refused)
		})
	in := input()
	in.Awaits, in.Inbox = []string{"s"}, []Signal{{ID: 5, Name: "s"}}
	res := RunError(t.Context(), m.Spec(), in, refused)
	if e := ends(t, res, Finished); e.Kind != KindNext || !strings.Contains(string(e.State), "handled") || len(e.Handed) != 1 || res.Err != refused {
		t.Errorf("got %+v, %v", e, res.Err)
	}
}

func errOther(got, want error) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("got the error %w", got)
}

func TestAbandon(t *testing.T) {
	t.Parallel()
	abandon, running, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	m := machine(func(context.Context, *Call[order]) (Outcome, error) { close(running); <-release; return Done(1), nil })
	in := input()
	in.Abandon = abandon
	go func() { <-running; close(abandon) }()
	res := Run(t.Context(), m.Spec(), in)
	ends(t, res, Abandoned)
	close(release)
	<-res.Left
}

func TestRunWaitsForACancelledStep(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{ErrLeaseLost, ErrCancelled, ErrDraining} {
		ctx, cancel := context.WithCancelCause(t.Context())
		m := machine(func(ctx context.Context, _ *Call[order]) (Outcome, error) {
			cancel(cause)
			<-ctx.Done()
			return Done(context.Cause(ctx) == cause), nil
		}, StepTimeout(time.Hour))
		if e := ends(t, Run(ctx, m.Spec(), input()), Finished); string(e.Result) != "true" {
			t.Errorf("%v: got %+v", cause, e)
		}
	}
}

// TestInterruptedStepsDidNotFail: a deploy must not run error handlers, or fail instances without one.
func TestInterruptedStepsDidNotFail(t *testing.T) {
	t.Parallel()
	give := map[string]func(context.Context) error{
		"its error": func(ctx context.Context) error { return fmt.Errorf("query: %w", ctx.Err()) },
		"the cause": func(ctx context.Context) error { return context.Cause(ctx) },
		"another":   func(context.Context) error { return errors.New("other") },
	}
	for _, test := range []struct {
		cause error
		give  string
		want  Kind
	}{
		{ErrDraining, "its error", KindRetry},
		{ErrDraining, "the cause", KindRetry},
		{ErrDraining, "another", KindStop},
		{ErrLeaseLost, "its error", KindRetry},
		{ErrCancelled, "its error", KindStop},
		{nil, "its error", KindRetry},
		{errors.New("of somebody else"), "the cause", KindRetry},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		step := func(ctx context.Context, c *Call[order]) (Outcome, error) {
			c.State.Paid = 100
			cancel(test.cause)
			<-ctx.Done()
			return nil, give[test.give](ctx)
		}
		in := input()
		in.Attempt = 19
		e := ends(t, Run(ctx, machine(step).Spec(), in), Finished)
		if e.Kind != test.want {
			t.Errorf("%v, returns %s: got %+v", test.cause, test.give, e)
		}
		if e.Kind == KindRetry && (!e.Uncounted || string(e.State) != `{"id":1}` || e.Error != "" || e.Delay != 0) {
			t.Errorf("%v, returns %s: the retry is %+v", test.cause, test.give, e)
		}
	}
}

func TestInterruptedHandlersDidNotFail(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	m := machine(func(context.Context, *Call[order]) (Outcome, error) { return nil, errors.New("x") }).
		OnError(func(ctx context.Context, _ *Call[order], err error) (Outcome, error) {
			cancel(ErrDraining)
			return nil, ctx.Err()
		})
	if e := ends(t, Run(ctx, m.Spec(), input()), Finished); e.Kind != KindRetry || !e.Uncounted {
		t.Errorf("got %+v", e)
	}
}

type hostile struct{ Mode string }

func (h *hostile) UnmarshalJSON(b []byte) error {
	if strings.Contains(string(b), "unmarshal") {
		panic("in UnmarshalJSON")
	}
	return nil
}

func (h *hostile) MarshalJSON() ([]byte, error) {
	switch h.Mode {
	case "panic":
		panic("in MarshalJSON")
	case "exit":
		runtime.Goexit()
	}
	return []byte(`{}`), nil
}

func TestHostileEncodings(t *testing.T) {
	t.Parallel()
	mode := ""
	m := New[hostile]("m").Step("a", func(_ context.Context, c *Call[hostile]) (Outcome, error) {
		c.State.Mode = mode
		return Next("a"), nil
	})
	in := input()
	in.State = []byte(`{"unmarshal":1}`)
	if res := Run(t.Context(), m.Spec(), in); res.Ending != Undecodable || !strings.Contains(res.Err.Error(), "in UnmarshalJSON") {
		t.Errorf("got %+v", res)
	}
	mode = "panic"
	if e := ends(t, Run(t.Context(), m.Spec(), input()), Finished); e.Kind != KindStop || !strings.Contains(e.Error, "in MarshalJSON") {
		t.Errorf("got %+v", e)
	}
	mode = "exit"
	ends(t, Run(t.Context(), m.Spec(), input()), Vanished)
}

// TestOldRowsStayReadable: an interrupted step of a row that holds its object in a string stores the object.
func TestOldRowsStayReadable(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrDraining)
	in := input()
	in.State = []byte(`"{\"id\":1}"`)
	m := machine(func(ctx context.Context, _ *Call[order]) (Outcome, error) { return nil, ctx.Err() })
	if e := ends(t, Run(ctx, m.Spec(), in), Finished); string(e.State) != `{"id":1}` {
		t.Errorf("got %s", e.State)
	}
}

// TestConcurrentRuns: a spec is shared by all that run its steps.
func TestConcurrentRuns(t *testing.T) {
	t.Parallel()
	m := machine(func(_ context.Context, c *Call[order]) (Outcome, error) {
		c.State.Paid++
		if c.State.ID%2 == 0 {
			return nil, errors.New("even")
		}
		return Next("a"), nil
	}, StepTimeout(time.Hour)).OnError(func(_ context.Context, c *Call[order], _ error) (Outcome, error) {
		return Next("a"), nil
	})
	var wg sync.WaitGroup
	for id := range 64 {
		wg.Go(func() {
			in := &Input{Step: "a", State: fmt.Appendf(nil, `{"id":%d}`, id)}
			res := Run(t.Context(), m.Spec(), in)
			if want := fmt.Sprintf(`{"id":%d,"paid":%d}`, id, id%2); res.Ending != Finished || string(res.Encoded.State) != want {
				t.Errorf("got %+v, want %s", res, want)
			}
		})
	}
	wg.Wait()
}
