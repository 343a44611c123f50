package fsm

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestTogether(t *testing.T) {
	t.Parallel()
	work := func() {}
	run := func(out Outcome) Result {
		m := New[struct{}]("m", Inline()).Step("a", func(context.Context, *Call[struct{}]) (Outcome, error) { return out, nil })
		return Run(t.Context(), m.Spec(), &Input{ID: 1, Step: "a", State: []byte(`{}`)})
	}
	r := run(Together(Next("a").Inline(), work, time.Second))
	if e := r.Encoded; r.Ending != Finished || e.Kind != KindNext || e.Step != "a" || e.Work == nil || e.WorkTimeout != time.Second || e.Inline {
		t.Errorf("%+v, %+v", r, e)
	}
	for name, out := range map[string]Outcome{
		"no outcome": Together(nil, work, 0),
		"no work":    Together(Done(nil), nil, 0),
		"negative":   Together(Done(nil), work, -1),
		"nested":     Together(Together(Done(nil), work, 0), work, 0),
		"bad inside": Together(Next("nowhere"), work, 0),
	} {
		r := run(out)
		if r.Ending != Finished || r.Encoded.Kind != KindStop || r.Encoded.Work != nil || !errors.Is(r.Err, ErrInvalid) {
			t.Errorf("%s: %+v, %+v", name, r, r.Encoded)
		}
	}
}
