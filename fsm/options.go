package fsm

import (
	"math"
	"slices"
	"strings"
	"time"
)

// Option is a property of a machine or job, given to New or NewJob. Mistakes are reported when an engine starts.
type Option interface{ define(*definition) }

// SharedOption is an Option for all instances of a definition and an InsertOption for one of them.
type SharedOption interface {
	Option
	InsertOption
}

// StepOption is a property of one step.
type StepOption interface{ step(*stepSpec) error }

type option func(*definition)

func (f option) define(d *definition) { f(d) }

type sharedOption func(*draft)

func (f sharedOption) insert(d *draft)      { f(d) }
func (f sharedOption) define(d *definition) { f(&d.draft) }

type stepOption func(*stepSpec) error

func (f stepOption) step(s *stepSpec) error { return f(s) }

// Queue is where the instance runs. Default "default".
func Queue(name string) SharedOption {
	return sharedOption(func(d *draft) {
		d.Queue = name
		d.refuse(CheckName("Queue", name))
	})
}

// Priority orders the instances of a queue: lower runs first. Between -32768 and 32767, default 0.
func Priority(p int) SharedOption {
	small, err := priority(p)
	return sharedOption(func(d *draft) {
		d.Priority = small
		d.refuse(err)
	})
}

// ConcurrencyKey lets at most one instance with this key ("name" or "name:partition") execute at a time, or as
// many as a configured gate of that name allows.
func ConcurrencyKey(key string) SharedOption {
	return sharedOption(func(d *draft) {
		d.ConcurrencyKey = key
		d.refuse(CheckPartitioned("ConcurrencyKey", key))
	})
}

// RateLimit makes the instance's first step take one token of the rate limit key ("name" or "name:partition"), or
// weight tokens. Later steps name theirs with Next(...).RateLimit.
func RateLimit(key string, weight ...float64) SharedOption {
	limit := &rateLimit{key, slices.Clone(weight)}
	return sharedLimit{limit}
}

type sharedLimit struct{ limit *rateLimit }

func (o sharedLimit) insert(d *draft) { d.limit = o.limit }

func (o sharedLimit) define(d *definition) {
	d.limit = o.limit
	if _, err := o.limit.check(); err != nil {
		d.refuse(err)
		return
	}
	name, _, _ := strings.Cut(o.limit.key, ":")
	if !slices.Contains(d.limits, name) {
		d.limits = append(d.limits, name)
	}
}

// Version is the machine's version, at least 1 (the default). Instances run under the version that they were
// inserted with; an engine may be given several versions of one machine.
func Version(n int) Option {
	return option(func(d *definition) {
		d.Insertion.Version = n
		if n < 1 || n > math.MaxInt32 {
			d.refuse(invalid("Version", "must be between 1 and %d, is %d", math.MaxInt32, n))
		}
	})
}

// Initial is the step in which new instances start. Default: the step declared first.
func Initial(step string) Option {
	return option(func(d *definition) {
		d.Insertion.Step = step
		d.onlyFor("Initial", false)
		d.refuse(CheckName("Initial", step))
	})
}

// Inline asks that every Next of the machine runs its step in the same task, as NextOutcome.Inline does for one.
func Inline() Option {
	return option(func(d *definition) {
		d.inline = true
		d.onlyFor("Inline", false)
	})
}

// History keeps a record of each transition of each instance, for as long as the instance is kept. It costs a row a
// transition, written by the commit of its outcome. Engine.History reads it.
func History() Option {
	return option(func(d *definition) { d.history = true })
}

// StepTimeout bounds each run of each step, or of a job's function: its context then ends with ErrStepTimeout, and
// that error goes to the error handler, which gets the same time anew (a job is retried). A step that ignores its context is given up after a
// grace, 30 s unless the engine is configured otherwise. 0 (the default) = none.
func StepTimeout(d time.Duration) Option {
	return option(func(def *definition) {
		def.timeout = d
		def.refuse(CheckDuration("StepTimeout", d))
	})
}

// MaxCrashes is how often in a row one step may take its worker down with it before the instance is failed instead
// of run again. Default 10; 0 = never.
func MaxCrashes(n int) Option {
	return option(func(d *definition) {
		d.maxCrashes = n
		if n < 0 || n > math.MaxInt32 {
			d.refuse(invalid("MaxCrashes", "must be between 0 and %d, is %d", math.MaxInt32, n))
		}
	})
}

// MaxAttempts is how often a job is run before it is failed. Default 20. Machines decide in their error handler.
func MaxAttempts(n int) Option {
	return option(func(d *definition) {
		d.maxAttempts = n
		d.onlyFor("MaxAttempts", true)
		if n < 1 || n > math.MaxInt32 {
			d.refuse(invalid("MaxAttempts", "must be between 1 and %d, is %d", math.MaxInt32, n))
		}
	})
}

// Backoff is how long a job waits after its run number attempt (from 0) failed. Default: 1 s · 2^attempt, at most 5
// minutes. A negative delay, or a panic, of f is replaced by the default.
func Backoff(f func(attempt int) time.Duration) Option {
	return option(func(d *definition) {
		d.backoff = f
		d.onlyFor("Backoff", true)
		if f == nil {
			d.refuse(invalid("Backoff", "must not be nil"))
		}
	})
}

// Timeout overrules the machine's StepTimeout for one step. 0 = none.
func Timeout(d time.Duration) StepOption {
	return stepOption(func(s *stepSpec) error {
		s.timeout = d
		return CheckDuration("Timeout", d)
	})
}

// To declares the steps that this one may go to: that they exist is then checked when an engine starts, and an
// outcome that goes elsewhere is an error. The error handler is not bound by it.
func To(steps ...string) StepOption {
	return stepOption(func(s *stepSpec) error {
		s.to = append(make([]string, 0, len(steps)), steps...)
		return nil
	})
}
