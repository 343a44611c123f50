package fsm

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Outcome is what a step decides: Next, Retry, Await, ScheduleChildren, Done or Stop. Outcomes are immutable
// values; a method returns a changed copy. A mistake in one (an unknown step, a negative delay) is found when the
// step has returned it, and goes to the machine's error handler.
type Outcome interface {
	// encode validates the outcome and fills in e, except for the state.
	encode(e *Encoded, c *checker) error
}

// checker is what outcomes are checked against.
type checker struct {
	spec   *Spec
	step   *stepSpec // whose outcome it is; nil for an error handler, which may go to any step
	in     *Input
	limits *Limits
}

func (c *checker) target(field, step string) error {
	if err := CheckName(field, step); err != nil {
		return err
	}
	if !c.spec.HasStep(step) {
		return invalid(field, "must be a step of machine %q, which has no %q", c.spec.Name, step)
	}
	if c.step != nil && c.step.to != nil && !slices.Contains(c.step.to, step) {
		return invalid(field, "must be one of those that step %q declares with To, is %q", c.step.name, step)
	}
	return nil
}

// Next goes to another step of the machine, in a transaction that also stores the state and deletes the awaited
// signals that this step was handed. The attempt starts at 0 again.
func Next(step string) NextOutcome { return NextOutcome{step: step} }

// NextOutcome is an Outcome made by Next.
type NextOutcome struct {
	step   string
	delay  time.Duration
	limit  *rateLimit
	key    KeyChange
	newKey string
	inline bool
}

// After makes the next step wait for d after the commit: a durable sleep, of any length.
func (o NextOutcome) After(d time.Duration) NextOutcome {
	o.delay = d
	return o
}

// Inline asks that the next step runs in the same task, right after the commit of this one, instead of being claimed
// anew: the instance stays claimed, and keeps its slot and its concurrency key. Nothing else changes: this step is
// durable before the next one begins. After a number of steps (see the engine's Config.InlineLimit) the instance goes
// back to its queue, so that more urgent work can cut in. A Next with a delay, another concurrency key or a rate limit
// is not run in the same task, whether it asks for it or not.
func (o NextOutcome) Inline() NextOutcome {
	o.inline = true
	return o
}

// RateLimit makes the next step take a token of the rate limit key ("name" or "name:partition"), or weight
// tokens. Without it the next step takes none, whatever this one took.
func (o NextOutcome) RateLimit(key string, weight ...float64) NextOutcome {
	o.limit = &rateLimit{key, slices.Clone(weight)}
	return o
}

// ConcurrencyKey gives the instance another concurrency key ("name" or "name:partition"). Without it, it keeps
// the one it has.
func (o NextOutcome) ConcurrencyKey(key string) NextOutcome {
	o.key, o.newKey = SetKey, key
	return o
}

// ReleaseKey takes the instance's concurrency key away.
func (o NextOutcome) ReleaseKey() NextOutcome {
	o.key, o.newKey = ReleaseKey, ""
	return o
}

func (o NextOutcome) encode(e *Encoded, c *checker) (err error) {
	e.Kind, e.Step, e.Key, e.NewKey = KindNext, o.step, o.key, o.newKey
	if err := c.target("step of Next", o.step); err != nil {
		return err
	}
	if err := CheckDuration("delay of Next", o.delay); err != nil {
		return err
	}
	e.Delay = microseconds(o.delay)
	e.Inline = (o.inline || c.spec.inline) && e.Delay == 0
	if o.key == SetKey {
		if err := CheckPartitioned("concurrency key of Next", o.newKey); err != nil {
			return err
		}
	}
	if o.limit != nil {
		e.RateLimit = o.limit.key
		e.Weight, err = o.limit.admissible(c.limits)
	}
	return err
}

// Retry runs the same step again after delay, with the state as this run left it and the attempt counted. What
// the step awaited, and its signals, are kept.
func Retry(delay time.Duration) Outcome { return retryOutcome{delay: delay} }

type retryOutcome struct {
	delay     time.Duration
	uncounted bool
}

func (o retryOutcome) encode(e *Encoded, c *checker) error {
	e.Kind, e.Step, e.Uncounted = KindRetry, c.in.Step, o.uncounted
	e.Delay = microseconds(o.delay)
	return CheckDuration("delay of Retry", o.delay)
}

// Await parks the instance until a signal of one of the names arrives, which may be in the inbox already, and
// then goes to the step named with Then. Signals that this step was handed itself do not end the wait, so that a
// step collects a set of signals by awaiting until it has them all.
func Await(names ...string) AwaitOutcome { return AwaitOutcome{names: slices.Clone(names)} }

// AwaitOutcome is an Outcome made by Await.
type AwaitOutcome struct {
	names   []string
	step    string
	timeout time.Duration
}

// Then names the step that runs when a signal is there or the timeout has passed. It is required.
func (o AwaitOutcome) Then(step string) AwaitOutcome {
	o.step = step
	return o
}

// Timeout ends the wait after d (0 = never, the default): the next step then runs with whatever is in the inbox,
// possibly nothing. It is not a failure. Any length works, months too.
func (o AwaitOutcome) Timeout(d time.Duration) AwaitOutcome {
	o.timeout = d
	return o
}

func (o AwaitOutcome) encode(e *Encoded, c *checker) error {
	e.Kind, e.Step = KindAwait, o.step
	if len(o.names) == 0 {
		return invalid("names of Await", "must be at least one")
	}
	if len(o.names) > maxNames {
		return invalid("names of Await", "must be at most %d, are %d", maxNames, len(o.names))
	}
	e.Awaits = make([]string, 0, len(o.names))
	for _, name := range o.names {
		if err := CheckName("name of Await", name); err != nil {
			return err
		}
		if !slices.Contains(e.Awaits, name) {
			e.Awaits = append(e.Awaits, name)
		}
	}
	if o.step == "" {
		return invalid("step of Await", "must be named with Then")
	}
	if err := c.target("step of Await", o.step); err != nil {
		return err
	}
	e.Timeout = microseconds(o.timeout)
	return CheckDuration("timeout of Await", o.timeout)
}

// maxFanOut bounds the bytes of one fan-out, which is one statement: Postgres takes at most 1 GiB.
const maxFanOut = 256 << 20

// ScheduleChildren inserts the children and parks the instance until all of them have ended, in one transaction;
// then it goes to the step named with Then. Children whose correlation key is occupied are dropped; with none left
// it goes on at once.
func ScheduleChildren(children ...Instance) ChildrenOutcome {
	return ChildrenOutcome{children: slices.Clone(children)}
}

// ChildrenOutcome is an Outcome made by ScheduleChildren.
type ChildrenOutcome struct {
	children []Instance
	step     string
}

// Then names the step that runs when every child has ended, whatever its outcome. It is required.
func (o ChildrenOutcome) Then(step string) ChildrenOutcome {
	o.step = step
	return o
}

func (o ChildrenOutcome) encode(e *Encoded, c *checker) error {
	e.Kind, e.Step = KindChildren, o.step
	if o.step == "" {
		return invalid("step of ScheduleChildren", "must be named with Then")
	}
	if err := c.target("step of ScheduleChildren", o.step); err != nil {
		return err
	}
	var err error
	e.Children, err = c.encodeChildren(o.children, maxFanOut)
	return err
}

// encodeChildren encodes children that take at most so many bytes together.
func (c *checker) encodeChildren(children []Instance, most int) ([]Insertion, error) {
	encoded := make([]Insertion, len(children))
	size := 0
	for i := range children {
		child, err := children[i].Insertion(*c.limits)
		if err == nil && child.RequestID != "" {
			err = invalid("RequestID", "must not be given to a child, which is inserted once anyway")
		}
		if err == nil && c.limits.CheckInsertion != nil {
			err = c.limits.CheckInsertion(child)
		}
		if err != nil {
			return nil, &InvalidError{Field: "ScheduleChildren", Problem: fmt.Sprintf("has an invalid child at index %d", i), Err: err}
		}
		const row = 256 // about what the other columns take
		if size += len(child.State) + row; size > most {
			return nil, invalid("ScheduleChildren", "must be at most %d bytes for all children; spread them over several steps or levels", most)
		}
		encoded[i] = child
	}
	return encoded, nil
}

// Done ends the instance as done and records the result: any value that encoding/json encodes. A nil result, or
// one that encodes as null, is none. The state stays as it was stored last.
func Done(result any) Outcome { return doneOutcome{result} }

type doneOutcome struct{ result any }

func (o doneOutcome) encode(e *Encoded, c *checker) error {
	e.Kind = KindDone
	if o.result == nil {
		return nil
	}
	b, err := encodeJSON("result", o.result, c.limits, false)
	if err != nil {
		return err
	}
	if string(b) == "null" {
		return nil
	}
	if c.limits.Interoperable && b[0] != '{' {
		return invalid("result", "must be a JSON object because the engine is interoperable, a %T encodes as %s", o.result, excerpt(b))
	}
	e.Result, err = c.limits.seal("result", b)
	return err
}

// Stop ends the instance as failed and records the text of the reason, cut to 8 KiB. The state stays as it was
// stored last.
func Stop(reason error) Outcome { return stopOutcome{reason} }

type stopOutcome struct{ reason error }

var errNoReason = errors.New("stopped without a reason")

func (o stopOutcome) encode(e *Encoded, _ *checker) error {
	e.Kind = KindStop
	reason := o.reason
	if reason == nil {
		reason = errNoReason
	}
	e.Error = cleanText(reason)
	return nil
}
