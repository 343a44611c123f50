package fsm

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func stub[S any](context.Context, *Call[S]) (Outcome, error) { return Done(nil), nil }

func TestDefaults(t *testing.T) {
	t.Parallel()
	s := New[order]("m").Step("a", stub[order]).Step("b", stub[order]).Spec()
	if s.Name != "m" || s.Version != 1 || s.Initial != "a" || s.Queue != "default" || s.Job || s.MaxAttempts != 0 ||
		s.MaxCrashes != 10 || len(s.Problems) != 0 || !s.HasStep("a") || !s.HasStep("b") || s.HasStep("c") {
		t.Errorf("got %+v", s)
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	m := New[order]("m", Version(3), Queue("q"), Priority(-5), ConcurrencyKey("k:1"), RateLimit("stripe:eu", 2),
		MaxCrashes(0), Initial("b"), StepTimeout(time.Minute)).
		Step("a", stub[order], Timeout(0), To("a", "b")).Step("b", stub[order], To())
	s := m.Spec()
	if s.Version != 3 || s.Queue != "q" || s.MaxCrashes != 0 || s.Initial != "b" || !slices.Equal(s.RateLimits, []string{"stripe"}) {
		t.Errorf("got %+v", s)
	}
	if s.steps["a"].timeout != 0 || s.steps["b"].timeout != time.Minute || s.steps["b"].to == nil {
		t.Errorf("got %+v, %+v", s.steps["a"], s.steps["b"])
	}
	got, err := m.New(order{ID: 1}).Insertion(Limits{})
	want := Insertion{
		Machine: "m", Version: 3, Step: "b", Queue: "q", Priority: -5, ConcurrencyKey: "k:1",
		RateLimit: "stripe:eu", Weight: 2, State: []byte(`{"id":1,"paid":0}`),
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
	}
	if len(s.Problems) != 0 {
		t.Error(s.Problems)
	}
}

func TestInline(t *testing.T) {
	for name, test := range map[string]struct {
		out  NextOutcome
		opts []Option
		want bool
	}{
		"neither":              {Next("a"), nil, false},
		"the machine":          {Next("a"), []Option{Inline()}, true},
		"the transition":       {Next("a").Inline(), nil, true},
		"delayed all the same": {Next("a").After(time.Second), []Option{Inline()}, false},
		"with another key":     {Next("a").ConcurrencyKey("k"), []Option{Inline()}, true}, // the engine knows the keys
	} {
		m := New[order]("m", test.opts...).Step("a", func(context.Context, *Call[order]) (Outcome, error) { return test.out, nil })
		res := Run(t.Context(), m.Spec(), &Input{Step: "a", State: []byte(`{}`)})
		if res.Ending != Finished || res.Err != nil || res.Encoded.Inline != test.want {
			t.Errorf("%s: %+v, %v", name, res.Encoded, res.Err)
		}
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	one := func(opts ...Option) Definition { return New[order]("m", opts...).Step("a", stub[order]) }
	step := func(opts ...StepOption) Definition { return New[order]("m").Step("a", stub[order], opts...) }
	job := func(opts ...Option) Definition {
		return NewJob("j", func(context.Context, *JobCall[order]) (int, error) { return 0, nil }, opts...)
	}
	for name, test := range map[string]struct {
		def  Definition
		want string
	}{
		"no name":          {New[order]("").Step("a", stub[order]), "machine name must not be empty"},
		"long name":        {New[order](strings.Repeat("x", 256)).Step("a", stub[order]), "at most 255 bytes, has 256"},
		"no step":          {New[order]("m"), "must have a step"},
		"unnamed step":     {New[order]("m").Step("", stub[order]), "step name must not be empty"},
		"nil step":         {New[order]("m").Step("a", nil), "function of step a must not be nil"},
		"step twice":       {New[order]("m").Step("a", stub[order]).Step("a", stub[order]), "must be declared once"},
		"nil handler":      {New[order]("m").Step("a", stub[order]).OnError(nil), "OnError must not be nil"},
		"two handlers":     {New[order]("m").Step("a", stub[order]).OnError(handleStub).OnError(handleStub), "OnError must be given once"},
		"nil option":       {one(nil), "option of m must not be nil"},
		"version 0":        {one(Version(0)), "Version must be between 1"},
		"version -1":       {one(Version(-1)), "Version must be between 1"},
		"empty queue":      {one(Queue("")), "Queue must not be empty"},
		"priority":         {one(Priority(32768)), "between -32768 and 32767, is 32768"},
		"low priority":     {one(Priority(-32769)), "between -32768 and 32767"},
		"concurrency key":  {one(ConcurrencyKey(":a")), "must not be empty"},
		"limit's weight":   {one(RateLimit("x", -1)), "positive finite"},
		"limit's name":     {one(RateLimit("x:")), "partition"},
		"step timeout":     {one(StepTimeout(-1)), "StepTimeout must not be negative"},
		"crashes":          {one(MaxCrashes(-1)), "MaxCrashes must be between"},
		"initial":          {one(Initial("b")), `Initial must be one of the steps ["a"], is "b"`},
		"attempts":         {one(MaxAttempts(3)), "only to a job"},
		"inline job":       {job(Inline()), "only to a machine"},
		"backoff":          {one(Backoff(DefaultBackoff)), "only to a job"},
		"nil step option":  {step(nil), "option of step a must not be nil"},
		"own timeout":      {step(Timeout(-1)), "Timeout must not be negative"},
		"target":           {step(To("a", "b")), `there is no "b"`},
		"job, nil":         {NewJob[order, int]("j", nil), "function of step run must not be nil"},
		"job, initial":     {job(Initial("run")), "only to a machine"},
		"job, attempts":    {job(MaxAttempts(0)), "MaxAttempts must be between 1"},
		"job, nil backoff": {job(Backoff(nil)), "Backoff must not be nil"},
		"job, args":        {NewJob("j", func(context.Context, *JobCall[int]) (int, error) { return 0, nil }), "argument type of j"},
		"job, result":      {NewJob("j", func(context.Context, *JobCall[order]) (chan int, error) { return nil, nil }), "result type of j"},
	} {
		problems := test.def.Spec().Problems
		if len(problems) != 1 || !strings.Contains(problems[0].Error(), test.want) || !errors.Is(problems[0], ErrInvalid) {
			t.Errorf("%s: got %v, want %q", name, problems, test.want)
		}
	}
}

func handleStub(context.Context, *Call[order], error) (Outcome, error) { return nil, nil }

type refusesZero struct{ x int }

func (r refusesZero) MarshalJSON() ([]byte, error) {
	if r.x == 0 {
		return nil, errors.New("zero")
	}
	return []byte("{}"), nil
}

type panicsOnZero struct{ *order }

func (p panicsOnZero) MarshalJSON() ([]byte, error) { return json.Marshal(p.order.ID) }

func TestStateTypes(t *testing.T) {
	t.Parallel()
	typeOf := reflect.TypeFor[order]
	for _, good := range []reflect.Type{
		typeOf(), reflect.TypeFor[*order](), reflect.TypeFor[map[string]any](), reflect.TypeFor[map[int]string](),
		reflect.TypeFor[struct{}](), reflect.TypeFor[any](), reflect.TypeFor[json.RawMessage](),
		reflect.TypeFor[refusesZero](), reflect.TypeFor[panicsOnZero](), reflect.TypeFor[**order](),
		reflect.TypeFor[*map[string]int](),
	} {
		if err := checkStateType("state type", good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []reflect.Type{
		reflect.TypeFor[int](), reflect.TypeFor[string](), reflect.TypeFor[[]order](), reflect.TypeFor[*[]order](),
		reflect.TypeFor[[2]int](), reflect.TypeFor[*string](), reflect.TypeFor[time.Time](), reflect.TypeFor[chan int](),
		reflect.TypeFor[func()](), reflect.TypeFor[struct{ C chan int }](), reflect.TypeFor[map[order]int](),
		reflect.TypeFor[error](), reflect.TypeFor[[]byte](), reflect.TypeFor[bool](),
	} {
		if err := checkStateType("state type", bad); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s was taken", bad)
		}
	}
}

// roundTrip runs a step that changes nothing over a stored state.
func roundTrip[S any](t *testing.T, stored string) string {
	t.Helper()
	m := New[S]("m").Step("a", func(context.Context, *Call[S]) (Outcome, error) { return Next("a"), nil })
	res := Run(t.Context(), m.Spec(), &Input{Step: "a", State: []byte(stored)})
	if res.Ending != Finished || res.Encoded.Kind != KindNext {
		t.Fatalf("%s: %+v, %v", stored, res.Encoded, res.Err)
	}
	return string(res.Encoded.State)
}

func TestStoredStates(t *testing.T) {
	t.Parallel()
	for stored, want := range map[string]string{
		``:                                 `{"id":0,"paid":0}`,
		`{}`:                               `{"id":0,"paid":0}`,
		` {"id": 3}`:                       `{"id":3,"paid":0}`,
		`"{\"id\":3,\"note\":\"a\\\"b\"}"`: `{"id":3,"paid":0,"note":"a\"b"}`,
		`" {\"id\":3}"`:                    `{"id":3,"paid":0}`,
		`""`:                               `{"id":0,"paid":0}`,
		`{"id":3,"unknown":[1,{}]}`:        `{"id":3,"paid":0}`,
	} {
		if got := roundTrip[order](t, stored); got != want {
			t.Errorf("%s became %s, want %s", stored, got, want)
		}
		if got := roundTrip[*order](t, stored); got != want {
			t.Errorf("%s became %s through a pointer, want %s", stored, got, want)
		}
	}
	for _, got := range []string{
		roundTrip[map[string]any](t, `{}`), roundTrip[any](t, `{}`), roundTrip[json.RawMessage](t, ``),
		roundTrip[struct{}](t, `{"a":1}`),
	} {
		if got != `{}` {
			t.Errorf("an empty state became %s", got)
		}
	}
}

func TestNilStatesAreEmptyObjects(t *testing.T) {
	t.Parallel()
	nilled := []Instance{
		New[map[string]any]("m").Step("a", stub[map[string]any]).New(nil),
		New[*order]("m").Step("a", stub[*order]).New(nil),
		New[any]("m").Step("a", stub[any]).New(nil),
		New[json.RawMessage]("m").Step("a", stub[json.RawMessage]).New(nil),
	}
	for i, inst := range nilled {
		if got, err := inst.Insertion(Limits{}); err != nil || string(got.State) != `{}` {
			t.Errorf("%d: got %s, %v", i, got.State, err)
		}
	}
	if _, err := New[any]("m").Step("a", stub[any]).New([]int{1}).Insertion(Limits{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("an array was taken: %v", err)
	}
}

func TestDefinitionGrowsUntilUsed(t *testing.T) {
	t.Parallel()
	m := New[order]("m").Step("a", stub[order])
	before := m.Spec()
	m.Step("b", stub[order])
	after, again := m.Spec(), m.Spec()
	if before.HasStep("b") || !after.HasStep("b") || after != again {
		t.Error("a spec changed, or was not renewed")
	}
	var wg sync.WaitGroup
	fresh := New[order]("m").Step("a", stub[order])
	for range 8 {
		wg.Go(func() {
			if _, err := fresh.New(order{}).Insertion(Limits{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
