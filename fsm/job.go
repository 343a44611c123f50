package fsm

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"
)

// JobStep is the name of a job's only step.
const JobStep = "run"

// JobFunc is the code of a job. Its result ends the instance as done; an error, or a panic, is retried (see
// MaxAttempts, Backoff, Cancel and Snooze).
type JobFunc[A, R any] func(ctx context.Context, j *JobCall[A]) (R, error)

// JobCall is one run of a job. It belongs to the job's goroutine and ends with the function.
type JobCall[A any] struct {
	ID             int64 // of the instance
	Name           string
	Version        int
	Attempt        int // how often the job was tried before: 0 at first
	MaxAttempts    int
	Queue          string
	CorrelationKey string // empty = none
	ParentID       int64  // 0 = none

	// Args are the arguments it was inserted with. Changes to them are not stored.
	Args A

	stored []byte
}

// Last reports whether the job fails for good if this run fails.
func (j *JobCall[A]) Last() bool { return j.Attempt >= j.MaxAttempts-1 }

func openJob[A any](spec *Spec, in *Input) (view, error) {
	j := &JobCall[A]{
		ID: in.ID, Name: spec.Name, Version: spec.Version, Attempt: in.Attempt, MaxAttempts: spec.MaxAttempts,
		Queue: in.Queue, CorrelationKey: in.CorrelationKey, ParentID: in.ParentID, stored: in.State,
	}
	if err := decodeObject(in.State, &j.Args); err != nil {
		return nil, err
	}
	return j, nil
}

// encodeState keeps the arguments as they were inserted: they need not survive a round trip through their type.
func (j *JobCall[A]) encodeState(l *Limits) ([]byte, error) {
	b, err := storedObject(j.stored)
	if err != nil {
		return nil, err
	}
	return l.seal("state", b)
}

func (j *JobCall[A]) handedIDs() []int64     { return nil }
func (j *JobCall[A]) withoutSignals([]int64) {}

// Job is a function that runs durably: a machine of one step, with retries. It may be used by several goroutines.
type Job[A, R any] struct{ spec *Spec }

// NewJob defines a job: arguments of a type that encodes as a JSON object go in, a result of any type that
// encodes as JSON comes out.
func NewJob[A, R any](name string, fn JobFunc[A, R], opts ...Option) *Job[A, R] {
	d := &definition{maxAttempts: 20, backoff: DefaultBackoff}
	d.begin(name, true, opts)
	d.refuse(checkStateType("argument type of "+name, reflect.TypeFor[A]()))
	if _, err := marshalZero(reflect.TypeFor[R]()); err != nil {
		d.refuse(&InvalidError{Field: "result type of " + name, Problem: "must be a type that encodes as JSON", Err: err})
	}
	d.addStep(JobStep, fn == nil, func(ctx context.Context, call view) (Outcome, error) {
		result, err := fn(ctx, call.(*JobCall[A]))
		if err == nil {
			return Done(result), nil
		}
		var snooze *snoozeError
		if errors.As(err, &snooze) {
			return retryOutcome{delay: snooze.delay, uncounted: true}, nil
		}
		return nil, err
	}, nil)
	backoff := d.backoff
	return &Job[A, R]{d.finish(openJob[A], func(_ context.Context, call view, err error) (Outcome, error) {
		j := call.(*JobCall[A])
		var cancel *cancelError
		if errors.As(err, &cancel) || j.Last() {
			return Stop(err), nil
		}
		return Retry(retryDelay(backoff, j.Attempt)), nil
	})}
}

// New is a new instance of the job. Its arguments are encoded when it is inserted.
func (j *Job[A, R]) New(args A, opts ...InsertOption) Instance {
	return Instance{spec: j.spec, state: &args, opts: slices.Clone(opts)}
}

// Spec describes the job to an engine.
func (j *Job[A, R]) Spec() *Spec { return j.spec }

// DefaultBackoff is 1 s · 2^attempt, at most 5 minutes.
func DefaultBackoff(attempt int) time.Duration {
	const most = 5 * time.Minute
	if attempt >= 9 {
		return most
	}
	return min(time.Second<<max(attempt, 0), most)
}

// retryDelay is what the job's backoff says, or the default when that is no answer.
func retryDelay(backoff func(int) time.Duration, attempt int) (d time.Duration) {
	defer func() {
		if recover() != nil || d < 0 {
			d = DefaultBackoff(attempt)
		}
	}()
	return backoff(attempt)
}
