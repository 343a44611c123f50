package fsm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// job is a job that ends with what fn returns.
func job(fn func(*JobCall[order]) (int, error), opts ...Option) *Job[order, int] {
	return NewJob("j", func(_ context.Context, j *JobCall[order]) (int, error) { return fn(j) }, opts...)
}

func attempt(n int) *Input {
	return &Input{ID: 7, Step: JobStep, Attempt: n, State: []byte(`{"id":1,"extra":true}`)}
}

func TestJobSpec(t *testing.T) {
	t.Parallel()
	j := job(func(*JobCall[order]) (int, error) { return 0, nil }, MaxAttempts(3), Queue("q"))
	s := j.Spec()
	if !s.Job || s.MaxAttempts != 3 || s.Initial != JobStep || s.Queue != "q" || s.MaxCrashes != 10 || len(s.Problems) != 0 {
		t.Errorf("got %+v", s)
	}
	if s := job(succeed).Spec(); s.MaxAttempts != 20 {
		t.Errorf("the default is %d attempts", s.MaxAttempts)
	}
	got, err := j.New(order{ID: 5}, CorrelationKey("o:5")).Insertion(Limits{})
	if err != nil || got.Machine != "j" || got.Step != JobStep || string(got.State) != `{"id":5,"paid":0}` || got.CorrelationKey != "o:5" {
		t.Errorf("got %+v, %v", got, err)
	}
}

func succeed(*JobCall[order]) (int, error) { return 0, nil }

func TestJobOutcomes(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	returns := func(n int, err error) func(*JobCall[order]) (int, error) {
		return func(*JobCall[order]) (int, error) { return n, err }
	}
	retry := func(d time.Duration) Encoded {
		return Encoded{Kind: KindRetry, Step: JobStep, State: []byte(`{"id":1,"extra":true}`), Delay: d}
	}
	for name, test := range map[string]struct {
		fn      func(*JobCall[order]) (int, error)
		attempt int
		want    Encoded
		text    string // in Error
	}{
		"done":            {returns(42, nil), 0, Encoded{Kind: KindDone, Result: []byte("42")}, ""},
		"error":           {returns(0, boom), 0, retry(time.Second), "boom"},
		"later":           {returns(0, boom), 5, retry(32 * time.Second), "boom"},
		"one more":        {returns(0, boom), 18, retry(5 * time.Minute), "boom"},
		"the last":        {returns(0, boom), 19, Encoded{Kind: KindStop}, "boom"},
		"beyond":          {returns(0, boom), 25, Encoded{Kind: KindStop}, "boom"},
		"cancel":          {returns(0, Cancel(boom)), 0, Encoded{Kind: KindStop}, "boom"},
		"cancel, wrapped": {returns(0, fmt.Errorf("card: %w", Cancel(boom))), 0, Encoded{Kind: KindStop}, "card: boom"},
		"cancel, nil":     {returns(0, Cancel(nil)), 0, Encoded{Kind: KindStop}, "cancelled by the job"},
		"snooze": {returns(0, Snooze(time.Hour)), 19, func() Encoded {
			e := retry(time.Hour)
			e.Uncounted = true
			return e
		}(), ""},
		"snooze, negative": {returns(0, Snooze(-1)), 0, retry(time.Second), "must not be negative"},
		"panic":            {func(*JobCall[order]) (int, error) { panic("ouch") }, 1, retry(2 * time.Second), "panic: ouch"},
		"panic, the last":  {func(*JobCall[order]) (int, error) { panic("ouch") }, 19, Encoded{Kind: KindStop}, "panic: ouch"},
		"changed args": {func(j *JobCall[order]) (int, error) {
			j.Args.Paid = 100
			return 0, boom
		}, 0, retry(time.Second), "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			e := ends(t, Run(t.Context(), job(test.fn).Spec(), attempt(test.attempt)), Finished)
			if !strings.Contains(e.Error, test.text) || (test.text == "") != (e.Error == "") {
				t.Errorf("the error is %q", e.Error)
			}
			test.want.Error = e.Error
			if fmt.Sprintf("%+v", *e) != fmt.Sprintf("%+v", test.want) {
				t.Errorf("got  %+v\nwant %+v", *e, test.want)
			}
		})
	}
}

func TestSnoozeIsNoError(t *testing.T) {
	t.Parallel()
	res := Run(t.Context(), job(func(*JobCall[order]) (int, error) { return 0, Snooze(time.Second) }).Spec(), attempt(0))
	if res.Err != nil {
		t.Errorf("got %v", res.Err)
	}
}

func TestJobCallShowsTheInstance(t *testing.T) {
	t.Parallel()
	in := attempt(4)
	in.Queue, in.CorrelationKey, in.ParentID = "q", "o:1", 3
	j := NewJob("j", func(_ context.Context, j *JobCall[order]) (string, error) {
		return fmt.Sprint(j.ID, " ", j.Name, j.Version, j.Attempt, j.MaxAttempts, j.Queue, j.CorrelationKey, j.ParentID, j.Args.ID, j.Last()), nil
	}, MaxAttempts(5))
	if e := ends(t, Run(t.Context(), j.Spec(), in), Finished); string(e.Result) != `"7 j1 4 5qo:13 1 true"` {
		t.Errorf("got %s", e.Result)
	}
}

func TestJobRetriesATimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := NewJob("j", func(ctx context.Context, _ *JobCall[order]) (int, error) {
			<-ctx.Done()
			return 1, nil
		}, StepTimeout(time.Second))
		res := Run(t.Context(), j.Spec(), attempt(0))
		if e := ends(t, res, Finished); e.Kind != KindRetry || !errors.Is(res.Err, ErrStepTimeout) {
			t.Errorf("got %+v, %v", e, res.Err)
		}
		if e := ends(t, Run(t.Context(), j.Spec(), attempt(19)), Finished); e.Kind != KindStop {
			t.Errorf("got %+v", e)
		}
	})
}

func TestJobRetriesAnUnencodableResult(t *testing.T) {
	t.Parallel()
	j := NewJob("j", func(context.Context, *JobCall[order]) (float64, error) { return math.NaN(), nil })
	if e := ends(t, Run(t.Context(), j.Spec(), attempt(0)), Finished); e.Kind != KindRetry || !strings.Contains(e.Error, "result cannot be encoded") {
		t.Errorf("got %+v", e)
	}
	ends(t, Run(t.Context(), job(func(*JobCall[order]) (int, error) { runtime.Goexit(); return 0, nil }).Spec(), attempt(0)), Vanished)
	in := attempt(0)
	in.State = []byte(`[]`)
	ends(t, Run(t.Context(), j.Spec(), in), Undecodable)
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{
		-1: time.Second, 0: time.Second, 1: 2 * time.Second, 8: 256 * time.Second, 9: 5 * time.Minute,
		63: 5 * time.Minute, math.MaxInt: 5 * time.Minute,
	} {
		if got := DefaultBackoff(n); got != want {
			t.Errorf("attempt %d waits %s, want %s", n, got, want)
		}
	}
	for name, test := range map[string]struct {
		backoff func(int) time.Duration
		want    time.Duration
	}{
		"own":      {func(n int) time.Duration { return time.Duration(n) * time.Minute }, 3 * time.Minute},
		"none":     {func(int) time.Duration { return 0 }, 0},
		"negative": {func(int) time.Duration { return -1 }, 8 * time.Second},
		"panics":   {func(int) time.Duration { panic("x") }, 8 * time.Second},
	} {
		fail := func(*JobCall[order]) (int, error) { return 0, errors.New("boom") }
		e := ends(t, Run(t.Context(), job(fail, Backoff(test.backoff)).Spec(), attempt(3)), Finished)
		if e.Kind != KindRetry || e.Delay != test.want {
			t.Errorf("%s: got %+v", name, e)
		}
	}
}
