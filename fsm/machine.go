package fsm

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// StepFunc is the code of a step. It decides with an Outcome; an error, or a panic, goes to the machine's error
// handler. ctx ends when the lease is lost, the instance is cancelled, the engine stops or the step times out:
// context.Cause tells which.
type StepFunc[S any] func(ctx context.Context, c *Call[S]) (Outcome, error)

// ErrorHandler decides what becomes of an instance whose step failed with err. It sees the state as it was before
// the step, and no signals. An error or a panic of its own fails the instance.
type ErrorHandler[S any] func(ctx context.Context, c *Call[S], err error) (Outcome, error)

// Machine is a state machine over the state S, a type that encodes as a JSON object: a struct, a map, or a pointer
// to one. It is built by chaining Step and OnError onto New, and may be used by several goroutines afterwards.
type Machine[S any] struct {
	d      definition
	mu     sync.Mutex // guards d while steps are added
	handle func(ctx context.Context, call view, err error) (Outcome, error)
	spec   atomic.Pointer[Spec] // nil until asked for, and after each change
}

// New begins the definition of a machine. The first Step added to it is the one where new instances start.
func New[S any](name string, opts ...Option) *Machine[S] {
	m := &Machine[S]{handle: stopOnError}
	m.d.begin(name, false, opts)
	m.d.refuse(checkStateType("state type of "+name, reflect.TypeFor[S]()))
	return m
}

// Step adds a step. It returns the machine itself.
func (m *Machine[S]) Step(name string, fn StepFunc[S], opts ...StepOption) *Machine[S] {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spec.Store(nil)
	m.d.addStep(name, fn == nil, func(ctx context.Context, call view) (Outcome, error) {
		return fn(ctx, call.(*Call[S]))
	}, opts)
	return m
}

// OnError sets the error handler; without one, an error stops the instance. It returns the machine itself.
func (m *Machine[S]) OnError(fn ErrorHandler[S]) *Machine[S] {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.spec.Store(nil)
	switch {
	case fn == nil:
		m.d.refuse(invalid("OnError", "must not be nil"))
	case m.d.handled:
		m.d.refuse(invalid("OnError", "must be given once"))
	}
	m.d.handled = true
	m.handle = func(ctx context.Context, call view, err error) (Outcome, error) {
		return fn(ctx, call.(*Call[S]), err)
	}
	return m
}

func stopOnError(_ context.Context, _ view, err error) (Outcome, error) { return Stop(err), nil }

// New is a new instance of the machine. Its state is encoded when it is inserted.
func (m *Machine[S]) New(state S, opts ...InsertOption) Instance {
	return Instance{spec: m.Spec(), state: &state, opts: slices.Clone(opts)}
}

// Spec describes the machine to an engine.
func (m *Machine[S]) Spec() *Spec {
	if s := m.spec.Load(); s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.d.finish(openCall[S], m.handle)
	m.spec.Store(s)
	return s
}

// definition collects what machines and jobs have in common while they are built.
type definition struct {
	draft       // the defaults of an insert, and the problems found so far
	job         bool
	handled     bool
	inline      bool
	history     bool
	timeout     time.Duration
	maxCrashes  int
	maxAttempts int
	backoff     func(attempt int) time.Duration
	limits      []string
	steps       []*stepSpec
}

func (d *definition) begin(name string, job bool, opts []Option) {
	d.Machine, d.Insertion.Version, d.Queue = name, 1, "default"
	d.job, d.maxCrashes = job, 10
	d.refuse(CheckName("machine name", name))
	for _, o := range opts {
		if o == nil {
			d.refuse(invalid("option of "+name, "must not be nil"))
			continue
		}
		o.define(d)
	}
}

func (d *definition) onlyFor(option string, job bool) {
	switch {
	case job && !d.job:
		d.refuse(invalid(option, "must not be given to a machine, only to a job"))
	case !job && d.job:
		d.refuse(invalid(option, "must not be given to a job, only to a machine"))
	}
}

func (d *definition) addStep(name string, missing bool, call func(context.Context, view) (Outcome, error), opts []StepOption) {
	s := &stepSpec{name: name, timeout: d.timeout, call: call}
	d.refuse(CheckName("step name", name))
	if missing {
		d.refuse(invalid("function of step "+name, "must not be nil"))
	}
	if slices.ContainsFunc(d.steps, func(o *stepSpec) bool { return o.name == name }) {
		d.refuse(invalid("step "+name, "must be declared once"))
	}
	for _, o := range opts {
		if o == nil {
			d.refuse(invalid("option of step "+name, "must not be nil"))
			continue
		}
		if err := o.step(s); err != nil {
			d.refuse(fmt.Errorf("step %q: %w", name, err))
		}
	}
	d.steps = append(d.steps, s)
}

// finish makes the spec of what was declared so far.
func (d *definition) finish(open func(*Spec, *Input) (view, error),
	handle func(context.Context, view, error) (Outcome, error),
) *Spec {
	s := &Spec{
		Name: d.Machine, Version: d.Insertion.Version, Initial: d.Insertion.Step, Queue: d.Queue, Job: d.job,
		MaxAttempts: d.maxAttempts, MaxCrashes: d.maxCrashes, inline: d.inline, History: d.history,
		RateLimits: slices.Clone(d.limits), Problems: slices.Clone(d.errs),
		steps: make(map[string]*stepSpec, len(d.steps)), defaults: d.Insertion, limit: d.limit,
		open: open, handle: handle,
	}
	for _, step := range d.steps {
		s.steps[step.name] = step
	}
	problem := func(err error) { s.Problems = append(s.Problems, err) }
	if len(d.steps) == 0 {
		problem(invalid("machine "+s.Name, "must have a step"))
	} else if s.Initial == "" {
		s.Initial = d.steps[0].name
	} else if !s.HasStep(s.Initial) {
		problem(invalid("Initial", "must be one of the steps %q, is %q", slices.Sorted(maps.Keys(s.steps)), s.Initial))
	}
	s.defaults.Step = s.Initial
	for _, step := range d.steps {
		for _, target := range step.to {
			if !s.HasStep(target) {
				problem(invalid("To of step "+step.name, "must name steps of the machine, there is no %q", target))
			}
		}
	}
	return s
}
