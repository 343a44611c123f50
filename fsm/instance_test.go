package fsm

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestInsertOptions(t *testing.T) {
	t.Parallel()
	m := New[order]("m", Queue("q"), RateLimit("stripe")).Step("a", stub[order])
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	base := Insertion{
		Machine: "m", Version: 1, Step: "a", Queue: "q", RateLimit: "stripe", Weight: 1, State: []byte(`{"id":0,"paid":0}`),
	}
	with := func(change func(*Insertion)) Insertion {
		i := base
		change(&i)
		return i
	}
	live := []string{"runnable", "executing", "awaiting_signal", "awaiting_children"}
	statuses := []Status{AwaitingChildren, Runnable, AwaitingSignal, Executing}
	for name, test := range map[string]struct {
		opts []InsertOption
		want Insertion
	}{
		"none":      {nil, base},
		"queue":     {[]InsertOption{Queue("r")}, with(func(i *Insertion) { i.Queue = "r" })},
		"the last":  {[]InsertOption{Queue("r"), Queue("s")}, with(func(i *Insertion) { i.Queue = "s" })},
		"priority":  {[]InsertOption{Priority(math.MinInt16)}, with(func(i *Insertion) { i.Priority = math.MinInt16 })},
		"key":       {[]InsertOption{ConcurrencyKey("k")}, with(func(i *Insertion) { i.ConcurrencyKey = "k" })},
		"limit":     {[]InsertOption{RateLimit("x:y", 0.5)}, with(func(i *Insertion) { i.RateLimit, i.Weight = "x:y", 0.5 })},
		"at":        {[]InsertOption{ScheduleIn(time.Hour), ScheduleAt(at)}, with(func(i *Insertion) { i.EligibleAt = at })},
		"in":        {[]InsertOption{ScheduleAt(at), ScheduleIn(time.Hour)}, with(func(i *Insertion) { i.Delay = time.Hour })},
		"in a tick": {[]InsertOption{ScheduleIn(1)}, with(func(i *Insertion) { i.Delay = time.Microsecond })},
		"request":   {[]InsertOption{RequestID("r")}, with(func(i *Insertion) { i.RequestID = "r" })},
		"correlated": {[]InsertOption{CorrelationKey("o:1")}, with(func(i *Insertion) {
			i.CorrelationKey, i.CorrelationScope = "o:1", live
		})},
		"no scope": {[]InsertOption{CorrelationKey("o:1"), CorrelationScope()}, with(func(i *Insertion) {
			i.CorrelationKey = "o:1"
		})},
		"wide scope": {[]InsertOption{CorrelationScope(append(statuses, StatusFailed, StatusDone)...), CorrelationKey("o:1")}, with(func(i *Insertion) {
			i.CorrelationKey, i.CorrelationScope = "o:1", append(slices.Clone(live), "done", "failed")
		})},
		"with failed": {[]InsertOption{CorrelationKey("o:1"), CorrelationScope(append(statuses, StatusFailed)...)}, with(func(i *Insertion) {
			i.CorrelationKey, i.CorrelationScope = "o:1", append(slices.Clone(live), "failed")
		})},
	} {
		for how, inst := range map[string]Instance{"New": m.New(order{}, test.opts...), "With": m.New(order{}).With(test.opts...)} {
			got, err := inst.Insertion(Limits{})
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("%s by %s: got %+v, %v\nwant %+v", name, how, got, err, test.want)
			}
		}
	}
}

func TestInsertOptionsAreRefused(t *testing.T) {
	t.Parallel()
	m := New[order]("m").Step("a", stub[order])
	for name, test := range map[string]struct {
		opt  InsertOption
		want string
	}{
		"nil":                {nil, "insert option must not be nil"},
		"queue":              {Queue("a\x00b"), "Queue must not contain NUL"},
		"queue UTF-8":        {Queue("\xff"), "Queue must be valid UTF-8"},
		"priority":           {Priority(math.MaxInt), "Priority must be between"},
		"concurrency key":    {ConcurrencyKey("k:"), "ConcurrencyKey must have a partition"},
		"weight":             {RateLimit("x", math.Inf(-1)), "positive finite"},
		"unknown limit":      {RateLimit("unknown"), "not declared"},
		"empty key":          {CorrelationKey(""), "CorrelationKey must not be empty"},
		"long key":           {CorrelationKey(strings.Repeat("k", 1025)), "CorrelationKey must be at most 1024 bytes, has 1025"},
		"request":            {RequestID(""), "RequestID must not be empty"},
		"zero time":          {ScheduleAt(time.Time{}), "must not be the zero time"},
		"early":              {ScheduleAt(time.Date(-4713, 1, 1, 0, 0, 0, 0, time.UTC)), "between 4713 BC"},
		"late":               {ScheduleAt(time.Date(294277, 1, 1, 0, 0, 0, 0, time.UTC)), "294276 AD, is in the year 294277"},
		"negative delay":     {ScheduleIn(-1), "ScheduleIn must not be negative"},
		"partial scope":      {CorrelationScope(Runnable, Executing), "CorrelationScope must be empty, or"},
		"terminal scope":     {CorrelationScope(StatusDone), "CorrelationScope must be empty, or"},
		"unknown status":     {CorrelationScope(Runnable, Executing, AwaitingSignal, AwaitingChildren, "x"), "must be empty, or"},
		"scope without key":  {CorrelationScope(Runnable, Executing, AwaitingSignal, AwaitingChildren), "must come with a CorrelationKey"},
		"empty scope, alone": {CorrelationScope(), "must come with a CorrelationKey"},
	} {
		limits := Limits{CheckRateLimit: func(name string, _ float64) error {
			return &InvalidError{Field: "rate limit", Problem: fmt.Sprintf("%q is not declared", name)}
		}}
		_, err := m.New(order{}, test.opt).Insertion(limits)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	_, err := m.New(order{Note: "\x00"}, Queue(""), RequestID("")).Insertion(Limits{})
	for _, want := range []string{"Queue", "RequestID", "state"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want all mistakes, with that of %s", err, want)
		}
	}
}

func TestWithLeavesTheOriginal(t *testing.T) {
	t.Parallel()
	m := New[order]("m").Step("a", stub[order])
	shared := m.New(order{}, Priority(1))
	a, b := shared.With(Queue("a")), shared.With(Queue("b"))
	for want, inst := range map[string]Instance{"default": shared, "a": a, "b": b} {
		if got, err := inst.Insertion(Limits{}); err != nil || got.Queue != want || got.Priority != 1 {
			t.Errorf("got %+v, %v, want the queue %s", got, err, want)
		}
	}
}

func TestNewRaw(t *testing.T) {
	t.Parallel()
	m := New[order]("m").Step("a", stub[order])
	if got, err := m.Spec().NewRaw([]byte(`{"id": 4, "more": 1}`)).Insertion(Limits{}); err != nil || string(got.State) != `{"id":4,"more":1}` {
		t.Errorf("got %s, %v", got.State, err)
	}
	if got, err := m.Spec().NewRaw(nil).Insertion(Limits{}); err != nil || string(got.State) != `{}` {
		t.Errorf("got %s, %v", got.State, err)
	}
	for _, bad := range []string{`{"id":"x"}`, `[]`, `{`, `"{}"`, `{"note":"\u0000"}`} {
		if _, err := m.Spec().NewRaw([]byte(bad)).Insertion(Limits{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v", bad, err)
		}
	}
}
