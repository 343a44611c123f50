package fsm

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"
)

// Instance is a new instance of a machine or job, ready to be inserted: made by Machine.New or Job.New. It is an
// immutable value. Mistakes in its options come to light when it is inserted.
type Instance struct {
	spec  *Spec
	state any
	raw   bool // state is JSON from outside
	opts  []InsertOption
}

// With returns the instance with further options; they overrule earlier ones.
func (i Instance) With(opts ...InsertOption) Instance {
	i.opts = append(slices.Clip(i.opts), opts...)
	return i
}

// Insertion validates and encodes the instance: nothing in it will be refused by the database. It reports every
// mistake at once, each an *InvalidError.
func (i Instance) Insertion(l Limits) (Insertion, error) {
	if i.spec == nil {
		return Insertion{}, invalid("instance", "must be made by a machine's or a job's New")
	}
	d := draft{Insertion: i.spec.defaults, limit: i.spec.limit}
	for _, o := range i.opts {
		if o == nil {
			d.refuse(invalid("insert option", "must not be nil"))
			continue
		}
		o.insert(&d)
	}
	d.finish(&l)
	d.State = i.encode(&d, &l)
	if len(d.errs) > 0 {
		return Insertion{}, errors.Join(d.errs...)
	}
	return d.Insertion, nil
}

func (i Instance) encode(d *draft, l *Limits) []byte {
	if len(i.spec.Problems) > 0 {
		d.refuse(&InvalidError{Field: "definition of " + i.spec.Name, Problem: "has problems", Err: errors.Join(i.spec.Problems...)})
		return nil
	}
	b, err := encodeObject("state", i.state, l)
	if err == nil && i.raw {
		if _, err = i.spec.open(i.spec, &Input{State: b}); err != nil {
			err = &InvalidError{Field: "state", Problem: "must decode into the state of machine " + i.spec.Name, Err: err}
		}
	}
	if err == nil {
		b, err = l.seal("state", b)
	}
	if err != nil {
		d.refuse(err)
	}
	return b
}

// NewRaw is Machine.New for a state that is JSON already, from a network peer for example. It must decode into the
// definition's type.
func (s *Spec) NewRaw(state json.RawMessage, opts ...InsertOption) Instance {
	if len(state) == 0 {
		state = json.RawMessage("{}")
	}
	return Instance{spec: s, state: state, raw: true, opts: opts}
}

// draft is an insertion while options are applied to it.
type draft struct {
	Insertion
	limit  *rateLimit
	scoped bool
	errs   []error
}

func (d *draft) refuse(err error) {
	if err != nil {
		d.errs = append(d.errs, err)
	}
}

func (d *draft) finish(l *Limits) {
	switch {
	case d.CorrelationKey != "" && !d.scoped:
		d.CorrelationScope = defaultScope
	case d.CorrelationKey == "" && d.scoped && len(d.errs) == 0:
		d.refuse(invalid("CorrelationScope", "must come with a CorrelationKey"))
	}
	if d.limit != nil {
		var err error
		d.RateLimit = d.limit.key
		d.Weight, err = d.limit.admissible(l)
		d.refuse(err)
	}
}

// InsertOption changes one insert: given to New, to Instance.With or to an engine's Insert.
type InsertOption interface{ insert(*draft) }

type insertOption func(*draft)

func (f insertOption) insert(d *draft) { f(d) }

// CorrelationKey gives the instance a key of its own, at most 1,024 bytes, by which signals reach it, and which no
// second instance can have while the first has not ended (see CorrelationScope).
func CorrelationKey(key string) InsertOption {
	return insertOption(func(d *draft) {
		d.CorrelationKey = key
		d.refuse(CheckKey("CorrelationKey", key))
	})
}

// defaultScope is where a correlation key is occupied. Invariant: never changed.
var defaultScope = []string{string(Runnable), string(Executing), string(AwaitingSignal), string(AwaitingChildren)}

// CorrelationScope says in which statuses the correlation key is occupied: the four that are not terminal (the
// default) with StatusDone, StatusFailed or both added, so that an ended instance keeps its key until it is
// deleted. With no status at all the key is neither unique nor an address. Other scopes are refused.
func CorrelationScope(statuses ...Status) InsertOption {
	scope, err := correlationScope(statuses)
	return insertOption(func(d *draft) {
		d.scoped, d.CorrelationScope = true, scope
		d.refuse(err)
	})
}

func correlationScope(statuses []Status) ([]string, error) {
	if len(statuses) == 0 {
		return nil, nil
	}
	rest := slices.Clone(statuses)
	take := func(s Status) bool {
		n := len(rest)
		rest = slices.DeleteFunc(rest, func(r Status) bool { return r == s })
		return len(rest) < n
	}
	scope, whole := slices.Clone(defaultScope), true
	for _, s := range defaultScope {
		whole = take(Status(s)) && whole
	}
	for _, s := range []Status{StatusDone, StatusFailed} {
		if take(s) {
			scope = append(scope, string(s))
		}
	}
	if !whole || len(rest) > 0 {
		return nil, invalid("CorrelationScope", "must be empty, or the four statuses that are not terminal with or without done and failed, is %q", statuses)
	}
	return scope, nil
}

// ScheduleAt makes the instance eligible at the time t, by the database's clock. A past time means now.
func ScheduleAt(t time.Time) InsertOption {
	return insertOption(func(d *draft) {
		d.EligibleAt, d.Delay = t, 0
		d.refuse(CheckTime("ScheduleAt", t))
	})
}

// ScheduleIn makes the instance eligible d after its insert, by the database's clock.
func ScheduleIn(delay time.Duration) InsertOption {
	return insertOption(func(d *draft) {
		d.EligibleAt, d.Delay = time.Time{}, microseconds(delay)
		d.refuse(CheckDuration("ScheduleIn", delay))
	})
}

// RequestID makes the insert repeatable: a second one with the same id within a day inserts nothing and gets the
// id of the first instance. At most 1,024 bytes. Children cannot have one.
func RequestID(id string) InsertOption {
	return insertOption(func(d *draft) {
		d.RequestID = id
		d.refuse(CheckKey("RequestID", id))
	})
}

// priority checks the range of a smallint.
func priority(p int) (int16, error) {
	if p < math.MinInt16 || p > math.MaxInt16 {
		return 0, invalid("Priority", "must be between %d and %d, is %d", math.MinInt16, math.MaxInt16, p)
	}
	return int16(p), nil
}
