package fsm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

type order struct {
	ID   int    `json:"id"`
	Paid int    `json:"paid"`
	Note string `json:"note,omitempty"`
}

// encodeOutcome runs a machine whose step "a" returns out; its refusal is what the error handler got.
func encodeOutcome(t *testing.T, out Outcome, limits Limits, opts ...StepOption) (*Encoded, error) {
	t.Helper()
	var refusal error
	m := New[order]("m").
		Step("a", func(context.Context, *Call[order]) (Outcome, error) { return out, nil }, opts...).
		Step("b", func(context.Context, *Call[order]) (Outcome, error) { return nil, nil }).
		OnError(func(_ context.Context, _ *Call[order], err error) (Outcome, error) {
			refusal = err
			return Stop(err), nil
		})
	if p := m.Spec().Problems; len(p) > 0 {
		t.Fatalf("problems: %v", p)
	}
	res := Run(t.Context(), m.Spec(), &Input{ID: 7, Step: "a", State: []byte(`{"id":1}`), Limits: limits})
	if res.Ending != Finished {
		t.Fatalf("the run ended as %d: %v", res.Ending, res.Err)
	}
	if refusal != res.Err {
		t.Errorf("Result.Err is %v, the handler got %v", res.Err, refusal)
	}
	return res.Encoded, refusal
}

func TestOutcomesAreEncoded(t *testing.T) {
	t.Parallel()
	state := []byte(`{"id":1,"paid":0}`)
	child := New[order]("child").Step("x", func(context.Context, *Call[order]) (Outcome, error) { return nil, nil })
	inserted := Insertion{Machine: "child", Version: 1, Step: "x", State: []byte(`{"id":2,"paid":0}`), Queue: "default"}
	for name, test := range map[string]struct {
		out  Outcome
		want Encoded
	}{
		"next":           {Next("b"), Encoded{Kind: KindNext, Step: "b", State: state}},
		"next to itself": {Next("a"), Encoded{Kind: KindNext, Step: "a", State: state}},
		"delayed":        {Next("b").After(time.Hour), Encoded{Kind: KindNext, Step: "b", State: state, Delay: time.Hour}},
		"inline":         {Next("b").Inline(), Encoded{Kind: KindNext, Step: "b", State: state, Inline: true}},
		"inline delayed": {Next("b").Inline().After(1), Encoded{Kind: KindNext, Step: "b", State: state, Delay: time.Microsecond}},
		"tiny delay":     {Next("b").After(1), Encoded{Kind: KindNext, Step: "b", State: state, Delay: time.Microsecond}},
		"longest delay": {
			Next("b").After(math.MaxInt64),
			Encoded{Kind: KindNext, Step: "b", State: state, Delay: time.Duration(math.MaxInt64).Truncate(time.Microsecond)},
		},
		"rate": {Next("b").RateLimit("stripe"), Encoded{Kind: KindNext, Step: "b", State: state, RateLimit: "stripe", Weight: 1}},
		"weighted rate": {
			Next("b").RateLimit("stripe:eu:1", 2.5),
			Encoded{Kind: KindNext, Step: "b", State: state, RateLimit: "stripe:eu:1", Weight: 2.5},
		},
		"key":         {Next("b").ConcurrencyKey("k:1"), Encoded{Kind: KindNext, Step: "b", State: state, Key: SetKey, NewKey: "k:1"}},
		"release":     {Next("b").ConcurrencyKey("k").ReleaseKey(), Encoded{Kind: KindNext, Step: "b", State: state, Key: ReleaseKey}},
		"retry":       {Retry(time.Second), Encoded{Kind: KindRetry, Step: "a", State: state, Delay: time.Second}},
		"retry now":   {Retry(0), Encoded{Kind: KindRetry, Step: "a", State: state}},
		"await":       {Await("s", "u", "s").Then("b"), Encoded{Kind: KindAwait, Step: "b", State: state, Awaits: []string{"s", "u"}}},
		"await timed": {Await("s").Then("b").Timeout(1), Encoded{Kind: KindAwait, Step: "b", State: state, Awaits: []string{"s"}, Timeout: time.Microsecond}},
		"children": {
			ScheduleChildren(child.New(order{ID: 2})).Then("b"),
			Encoded{Kind: KindChildren, Step: "b", State: state, Children: []Insertion{inserted}},
		},
		"no children":   {ScheduleChildren().Then("b"), Encoded{Kind: KindChildren, Step: "b", State: state, Children: []Insertion{}}},
		"done":          {Done(order{ID: 3}), Encoded{Kind: KindDone, Result: []byte(`{"id":3,"paid":0}`)}},
		"done, number":  {Done(3), Encoded{Kind: KindDone, Result: []byte(`3`)}},
		"done, nothing": {Done(nil), Encoded{Kind: KindDone}},
		"done, nil":     {Done((*order)(nil)), Encoded{Kind: KindDone}},
		"stop":          {Stop(errors.New("no\x00 \xff")), Encoded{Kind: KindStop, Error: "no\uFFFD \uFFFD"}},
		"stop, nil":     {Stop(nil), Encoded{Kind: KindStop, Error: "stopped without a reason"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := encodeOutcome(t, test.out, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(*got, test.want) {
				t.Errorf("got  %+v\nwant %+v", *got, test.want)
			}
		})
	}
}

// TestOutcomesAreRefused: each of these reaches the error handler, with an error that names what is wrong.
func TestOutcomesAreRefused(t *testing.T) {
	t.Parallel()
	stub := func(context.Context, *Call[order]) (Outcome, error) { return nil, nil }
	child := New[order]("child").Step("x", stub)
	broken := New[order]("broken")
	limits := Limits{
		MaxPayload: 100,
		CheckRateLimit: func(name string, weight float64) error {
			if name != "stripe" || weight > 10 {
				return fmt.Errorf("no such limit %s, or not for %v", name, weight)
			}
			return nil
		},
		CheckInsertion: func(i Insertion) error {
			if i.Queue != "default" {
				return errors.New("unknown queue " + i.Queue)
			}
			return nil
		},
	}
	interoperable := Limits{Interoperable: true}
	huge := strings.Repeat("x", 1025)
	for name, test := range map[string]struct {
		out    Outcome
		limits Limits
		want   string
	}{
		"none":                {nil, limits, "no outcome"},
		"unknown step":        {Next("c"), limits, `no "c"`},
		"empty step":          {Next(""), limits, "step of Next must not be empty"},
		"undeclared target":   {Next("a"), limits, `must be one of those that step "a" declares`},
		"negative delay":      {Next("b").After(-1), limits, "delay of Next must not be negative"},
		"negative retry":      {Retry(-time.Second), limits, "delay of Retry must not be negative"},
		"empty key":           {Next("b").ConcurrencyKey(""), limits, "concurrency key of Next must not be empty"},
		"key without name":    {Next("b").ConcurrencyKey(":x"), limits, "must not be empty"},
		"key without part":    {Next("b").ConcurrencyKey("x:"), limits, "must have a partition"},
		"long key":            {Next("b").ConcurrencyKey(huge), limits, "at most 1024 bytes, has 1025"},
		"NUL in key":          {Next("b").ConcurrencyKey("a\x00"), limits, "must not contain NUL"},
		"bad UTF-8 in key":    {Next("b").ConcurrencyKey("a\xff"), limits, "must be valid UTF-8"},
		"unknown limit":       {Next("b").RateLimit("x:1"), limits, "no such limit x"},
		"weight above burst":  {Next("b").RateLimit("stripe", 11), limits, "not for 11"},
		"weight zero":         {Next("b").RateLimit("stripe", 0), limits, "positive finite"},
		"weight negative":     {Next("b").RateLimit("stripe", -1), limits, "positive finite"},
		"weight NaN":          {Next("b").RateLimit("stripe", math.NaN()), limits, "positive finite"},
		"weight infinite":     {Next("b").RateLimit("stripe", math.Inf(1)), limits, "positive finite"},
		"two weights":         {Next("b").RateLimit("stripe", 1, 2), limits, "must be one number"},
		"empty limit":         {Next("b").RateLimit(""), limits, "rate limit must not be empty"},
		"await nothing":       {Await().Then("b"), limits, "at least one"},
		"await much":          {Await(make([]string, 1001)...).Then("b"), limits, "at most 1000"},
		"await empty":         {Await("").Then("b"), limits, "name of Await must not be empty"},
		"await NUL":           {Await("\x00").Then("b"), limits, "NUL"},
		"await nowhere":       {Await("s"), limits, "must be named with Then"},
		"await elsewhere":     {Await("s").Then("c"), limits, `no "c"`},
		"await negative":      {Await("s").Then("b").Timeout(-1), limits, "timeout of Await must not be negative"},
		"children nowhere":    {ScheduleChildren(), limits, "must be named with Then"},
		"children elsewhere":  {ScheduleChildren().Then("c"), limits, `no "c"`},
		"empty child":         {ScheduleChildren(child.New(order{}), Instance{}).Then("b"), limits, "index 1"},
		"child of problems":   {ScheduleChildren(broken.New(order{})).Then("b"), limits, "must have a step"},
		"child, unknown":      {ScheduleChildren(child.New(order{}, Queue("q"))).Then("b"), limits, "unknown queue q"},
		"child with request":  {ScheduleChildren(child.New(order{}, RequestID("r"))).Then("b"), limits, "RequestID must not be given to a child"},
		"child too large":     {ScheduleChildren(child.New(order{Note: strings.Repeat("x", 100)})).Then("b"), limits, "at most 100 bytes"},
		"unencodable":         {Done(make(chan int)), limits, "result cannot be encoded as JSON"},
		"NaN":                 {Done(math.NaN()), limits, "result cannot be encoded as JSON"},
		"NUL in the result":   {Done("a\x00"), limits, "result must not contain NUL"},
		"large result":        {Done(strings.Repeat("x", 99)), limits, "at most 100 bytes of JSON, has 101"},
		"scalar, interop":     {Done(3), interoperable, "must be a JSON object"},
		"nil pointer outcome": {(*NextOutcome)(nil), limits, "panic"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := encodeOutcome(t, test.out, test.limits, To("b"))
			if err == nil {
				t.Fatalf("it was taken: %+v", got)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("the handler got %q, want %q in it", err, test.want)
			}
			if got.Kind != KindStop || got.Error != err.Error() {
				t.Errorf("the default handler made %+v", got)
			}
		})
	}
}

func TestStateIsRefused(t *testing.T) {
	t.Parallel()
	m := New[map[string]any]("m").Step("a", func(_ context.Context, c *Call[map[string]any]) (Outcome, error) {
		c.State["bad"] = "x\x00"
		return Next("a"), nil
	})
	res := Run(t.Context(), m.Spec(), &Input{Step: "a"})
	if !errors.Is(res.Err, ErrInvalid) || res.Encoded.Kind != KindStop {
		t.Errorf("got %+v, %v", res.Encoded, res.Err)
	}
}

func TestFanOutIsBounded(t *testing.T) {
	t.Parallel()
	children := slices.Repeat([]Instance{machine(stub[order]).New(order{})}, 10)
	c := &checker{limits: &Limits{}}
	const each = 256 + len(`{"id":0,"paid":0}`)
	if got, err := c.encodeChildren(children, 10*each); err != nil || len(got) != 10 {
		t.Errorf("got %d, %v", len(got), err)
	}
	if _, err := c.encodeChildren(children, 10*each-1); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "spread them") {
		t.Errorf("got %v", err)
	}
}

func TestOutcomesAreImmutable(t *testing.T) {
	t.Parallel()
	names := []string{"s"}
	await := Await(names...)
	names[0] = "changed"
	timed := await.Then("b").Timeout(time.Hour)
	next := Next("b")
	_ = next.After(time.Hour).RateLimit("stripe").ReleaseKey()
	if got, err := encodeOutcome(t, timed, Limits{}); err != nil || got.Awaits[0] != "s" || got.Timeout != time.Hour {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := encodeOutcome(t, await.Then("a"), Limits{}); err != nil || got.Timeout != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := encodeOutcome(t, next, Limits{}); err != nil || got.Delay != 0 || got.RateLimit != "" || got.Key != KeepKey {
		t.Errorf("got %+v, %v", got, err)
	}
}
