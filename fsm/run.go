package fsm

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const defaultGrace = 30 * time.Second

// Run runs one step of an instance on a goroutine of its own and waits for it: its code, the machine's error
// handler if that fails, and the encoding of the outcome. Panics and runtime.Goexit of user code are contained.
//
// ctx should be for this run alone and end with it. When it is cancelled the step's context is, with the same
// cause; Run waits on, since an outcome that still comes may still count. It gives up on the step only when
// in.Abandon is closed, or a step timeout and the grace after it have passed. It keeps no reference to in
// afterwards, unless the step was abandoned.
func Run(ctx context.Context, spec *Spec, in *Input) Result {
	return start(ctx, spec, in, nil)
}

// RunError runs the machine's error handler with err, in place of the step that in describes: when an outcome that
// Run returned turned out to be impossible to commit. Everything else is as with Run.
func RunError(ctx context.Context, spec *Spec, in *Input, err error) Result {
	return start(ctx, spec, in, err)
}

// run is one run of a step. Its goroutine owns result until done is closed.
type run struct {
	ctx    context.Context
	spec   *Spec
	step   *stepSpec
	in     *Input // as stored
	plain  *Input // as the step's code sees it
	check  checker
	giveUp *time.Timer // nil when the step has no timeout
	done   chan struct{}
	result Result
}

func start(ctx context.Context, spec *Spec, in *Input, cause error) Result {
	step := spec.steps[in.Step]
	if step == nil {
		return Result{Ending: Undecodable, Err: fmt.Errorf("fsm: machine %q version %d has no step %q", spec.Name, spec.Version, in.Step)}
	}
	// A goroutine that ends without a word leaves the result as it is now.
	r := &run{ctx: ctx, spec: spec, step: step, in: in, done: make(chan struct{}), result: Result{Ending: Vanished}}
	r.check = checker{spec: spec, in: in, limits: &in.Limits}
	if step.timeout > 0 {
		r.giveUp = time.NewTimer(r.patience())
		defer r.giveUp.Stop()
	}
	go r.work(cause)
	return r.wait()
}

// patience is how long one call of user code may take before it is given up.
func (r *run) patience() time.Duration {
	grace := r.in.Grace
	if grace <= 0 {
		grace = defaultGrace
	}
	if sum := r.step.timeout + grace; sum > 0 {
		return sum
	}
	return r.step.timeout // so long that the sum overflows
}

func (r *run) wait() Result {
	var late <-chan time.Time
	if r.giveUp != nil {
		late = r.giveUp.C
	}
	select {
	case <-r.done:
		return r.result
	case <-r.in.Abandon:
	case <-late:
	}
	select {
	case <-r.done: // it made it after all
		return r.result
	default:
		return Result{Ending: Abandoned, Left: r.done}
	}
}

// work is the goroutine of the run.
func (r *run) work(cause error) {
	defer close(r.done)
	var handed []int64
	var err error
	if r.plain, err = r.in.reveal(); err != nil {
		r.result = Result{Ending: Undecodable, Err: err}
		return
	}
	if cause == nil {
		call, err := r.open()
		if err != nil {
			r.result = Result{Ending: Undecodable, Err: err}
			return
		}
		var e *Encoded
		if e, cause = r.attempt(call); cause == nil {
			r.result = Result{Ending: Finished, Encoded: e}
			return
		}
		if interrupted(r.ctx, cause) {
			r.result = r.again(cause)
			return
		}
		if errors.Is(cause, ErrCodec) {
			r.result = Result{Ending: Undecodable, Err: cause}
			return
		}
		handed = call.handedIDs()
	}
	call, err := r.open() // afresh: the step may have changed the state half-way
	if err != nil {
		r.result = Result{Ending: Undecodable, Err: err}
		return
	}
	call.withoutSignals(handed)
	if r.giveUp != nil {
		r.giveUp.Reset(r.patience())
	}
	r.result = r.handle(call, cause)
}

func (r *run) open() (call view, err error) {
	defer capture(&err) // an UnmarshalJSON of the user may panic
	return r.spec.open(r.spec, r.plain)
}

// attempt runs the step's code and encodes its outcome.
func (r *run) attempt(call view) (*Encoded, error) {
	out, err := r.call(call)
	if err != nil {
		return nil, err
	}
	r.check.step = r.step
	return r.encode(call, out)
}

// call runs the step's code under its timeout.
func (r *run) call(call view) (out Outcome, err error) {
	if r.step.timeout <= 0 {
		return r.guardedCall(r.ctx, call)
	}
	ctx, cancel := context.WithTimeoutCause(r.ctx, r.step.timeout, ErrStepTimeout)
	defer cancel()
	deadline := time.Now().Add(r.step.timeout)
	out, err = r.guardedCall(ctx, call)
	if time.Now().Before(deadline) && !errors.Is(context.Cause(ctx), ErrStepTimeout) {
		return out, err
	}
	timeout := fmt.Errorf("%w after %s", ErrStepTimeout, r.step.timeout)
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrStepTimeout) {
		return nil, timeout
	}
	return nil, fmt.Errorf("%w; then it returned: %w", timeout, err)
}

func (r *run) guardedCall(ctx context.Context, call view) (out Outcome, err error) {
	defer capture(&err)
	return r.step.call(ctx, call)
}

// handle runs the error handler; whatever goes wrong in it fails the instance.
func (r *run) handle(call view, cause error) Result {
	out, err := r.guardedHandle(call, cause)
	var e *Encoded
	if err == nil {
		r.check.step = nil
		e, err = r.encode(call, out)
	}
	switch {
	case err == nil:
	case interrupted(r.ctx, err):
		return r.again(cause)
	case errors.Is(err, ErrCodec):
		return Result{Ending: Undecodable, Err: err}
	default:
		e = &Encoded{Kind: KindStop, Error: CleanError("the error handler failed: " + errorText(err) +
			"\nwhile handling: " + errorText(cause))}
	}
	if e.Kind == KindRetry {
		e.Error = cleanText(cause)
	}
	return Result{Ending: Finished, Encoded: e, Err: cause}
}

func (r *run) guardedHandle(call view, cause error) (out Outcome, err error) {
	defer capture(&err)
	ctx := r.ctx
	if r.step.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.step.timeout, ErrStepTimeout)
		defer cancel()
	}
	return r.spec.handle(ctx, call, cause)
}

var errNoOutcome = errors.New("fsm: the step returned no outcome and no error")

// encode validates and encodes an outcome with what the code left of the state.
func (r *run) encode(call view, out Outcome) (e *Encoded, err error) {
	defer capture(&err) // a MarshalJSON of the user may panic
	if out == nil {
		return nil, errNoOutcome
	}
	e = &Encoded{}
	if err := out.encode(e, &r.check); err != nil {
		return nil, err
	}
	switch e.Kind {
	case KindDone, KindStop:
		return e, nil
	case KindNext, KindChildren, KindAwait:
		e.Handed = call.handedIDs()
	}
	e.State, err = call.encodeState(&r.in.Limits)
	return e, err
}

// again is the result of a step that gave up because it was interrupted: as if it had not run.
func (r *run) again(cause error) Result {
	state, err := storedObject(r.in.State)
	if err != nil {
		return Result{Ending: Undecodable, Err: err}
	}
	return Result{Ending: Finished, Err: cause, Encoded: &Encoded{
		Kind: KindRetry, Step: r.in.Step, State: state, Uncounted: true,
	}}
}
