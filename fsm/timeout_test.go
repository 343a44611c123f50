package fsm

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTimeoutGoesToTheHandler(t *testing.T) {
	t.Parallel()
	const timeout = time.Minute
	late := errors.New("late")
	wait := func(ctx context.Context) { <-ctx.Done() }
	for name, step := range map[string]StepFunc[order]{
		"returns the context's error": func(ctx context.Context, _ *Call[order]) (Outcome, error) { wait(ctx); return nil, ctx.Err() },
		"returns the cause":           func(ctx context.Context, _ *Call[order]) (Outcome, error) { wait(ctx); return nil, context.Cause(ctx) },
		"returns an outcome":          func(ctx context.Context, _ *Call[order]) (Outcome, error) { wait(ctx); return Done(1), nil },
		"returns another error":       func(ctx context.Context, _ *Call[order]) (Outcome, error) { wait(ctx); return nil, late },
		"panics":                      func(ctx context.Context, _ *Call[order]) (Outcome, error) { wait(ctx); panic(late) },
		"ignores it": func(context.Context, *Call[order]) (Outcome, error) {
			time.Sleep(timeout + defaultGrace - 1)
			return Done(1), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				m := machine(step, StepTimeout(timeout)).OnError(func(ctx context.Context, _ *Call[order], err error) (Outcome, error) {
					if !errors.Is(err, ErrStepTimeout) || ctx.Err() != nil {
						t.Errorf("the handler got %v under a context with %v", err, ctx.Err())
					}
					if strings.Contains(name, "another") != strings.Contains(err.Error(), "late") && name != "panics" {
						t.Errorf("the handler got %v", err)
					}
					// The handler has a budget of its own, however late the step was.
					time.Sleep(timeout + defaultGrace - 1)
					return Retry(0), nil
				})
				e := ends(t, Run(t.Context(), m.Spec(), input()), Finished)
				if e.Kind != KindRetry || !strings.Contains(e.Error, "timed out after 1m0s") || time.Since(began) < timeout {
					t.Errorf("got %+v after %s", e, time.Since(began))
				}
			})
		})
	}
}

func TestStepsOwnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New[order]("m", StepTimeout(time.Second)).
			Step("a", func(ctx context.Context, _ *Call[order]) (Outcome, error) {
				time.Sleep(time.Minute)
				_, has := ctx.Deadline()
				return Done(has), nil
			}, Timeout(0))
		if e := ends(t, Run(t.Context(), m.Spec(), input()), Finished); string(e.Result) != "false" {
			t.Errorf("got %+v", e)
		}
	})
}

func TestStuckStepsAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stuck := func(context.Context, *Call[order]) (Outcome, error) { <-release; return Done(1), nil }
		in := input()
		in.Grace = 5 * time.Second
		began := time.Now()
		res := Run(t.Context(), machine(stuck, StepTimeout(time.Second)).Spec(), in)
		ends(t, res, Abandoned)
		if d := time.Since(began); d != 6*time.Second {
			t.Errorf("given up after %s", d)
		}
		select {
		case <-res.Left:
			t.Error("Left is closed while the step runs")
		default:
		}
		close(release)
		<-res.Left
	})
}

func TestStuckHandlersAreGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		m := machine(func(context.Context, *Call[order]) (Outcome, error) { return nil, errors.New("x") }, StepTimeout(time.Second)).
			OnError(func(context.Context, *Call[order], error) (Outcome, error) { <-release; return Done(1), nil })
		res := Run(t.Context(), m.Spec(), input())
		ends(t, res, Abandoned)
		close(release)
		<-res.Left
	})
}

func TestLongTimeoutsDoNotOverflow(t *testing.T) {
	t.Parallel()
	m := machine(stub[order], StepTimeout(1<<63-1))
	if e := ends(t, Run(t.Context(), m.Spec(), input()), Finished); e.Kind != KindDone {
		t.Errorf("got %+v", e)
	}
}
