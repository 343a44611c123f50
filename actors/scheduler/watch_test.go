package scheduler

import (
	"context"
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// aStep is a step actor and a run of a machine.
func aStep(t actors.Telemetry, opts ...fsm.Option) (*step, *run) {
	m := fsm.New[struct{}]("m", opts...).Step("s", func(context.Context, *fsm.Call[struct{}]) (fsm.Outcome, error) {
		return fsm.Done(nil), nil
	})
	row := &pg.Claimed{ID: 1, Machine: "m", Version: 1, Step: "s", Attempt: 2, TraceContext: "before"}
	return &step{cfg: &Config{Telemetry: t}}, newRun(actors.RunStep{Claimed: row, Spec: m.Spec()})
}

// TestTelemetryThatIsOffAllocatesNothing runs all that a step does for telemetry and histories when nobody wants either.
func TestTelemetryThatIsOffAllocatesNothing(t *testing.T) { // not parallel: it counts allocations
	s, r := aStep(nil)
	e, o := &fsm.Encoded{Kind: fsm.KindNext}, pg.Outcome{Children: make([]pg.Insertion, 1)}
	if n := testing.AllocsPerRun(100, func() {
		if s.begin(r) != r.ctx {
			t.Error("the context is another one")
		}
		r.watch.ran()
		r.note(&o, e)
		if r.watch.goOn("x") != "x" {
			t.Error("the trace has changed")
		}
		r.watch.end(actors.StepEnded{})
	}); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
	if o.Record != nil || o.TraceContext != "" || o.Children[0].TraceContext != "" || !r.watch.begun.IsZero() {
		t.Errorf("something was noted: %+v, %+v", o, r.watch)
	}
}

// listener is a Telemetry that remembers.
type listener struct {
	keep    bool
	reports []actors.StepReport
}

type key struct{}

func (l *listener) StepBegins(ctx context.Context, _ *pg.Claimed) (context.Context, actors.StepSpan) {
	return context.WithValue(ctx, key{}, l), l
}
func (l *listener) Claimed(string, []pg.Claimed, time.Duration) {}
func (l *listener) Flushed(int, time.Duration)                  {}
func (l *listener) TraceContext() (string, bool)                { return "span", l.keep }
func (l *listener) Ended(r actors.StepReport)                   { l.reports = append(l.reports, r) }

func TestWhatAStepNotes(t *testing.T) {
	t.Parallel()
	l := &listener{keep: true}
	s, r := aStep(l, fsm.History())
	if ctx := s.begin(r); ctx.Value(key{}) != l {
		t.Error("the step's code does not get its span")
	}
	r.watch.ran()
	o := pg.Outcome{Children: make([]pg.Insertion, 2)}
	r.note(&o, &fsm.Encoded{Kind: fsm.KindChildren, Error: "e"})
	if o.TraceContext != "span" || o.Children[1].TraceContext != "span" || r.watch.goOn("before") != "span" {
		t.Errorf("the outcome carries %+v", o)
	}
	if o.Record == nil || o.Record.Step != "s" || o.Record.Attempt != 2 || o.Record.Took != r.watch.report.Ran {
		t.Errorf("the record is %+v", o.Record)
	}
	r.watch.end(r.ended(actors.EndStale, -1))
	r.watch.end(r.ended(actors.EndStale, -1))
	want := actors.StepReport{Outcome: "children", End: "stale", Error: "e", Ran: o.Record.Took, Children: 2}
	if len(l.reports) != 1 || l.reports[0] != want {
		t.Errorf("reported %+v, expected once %+v", l.reports, want)
	}

	l.keep = false // the row knows already
	s.begin(r)
	o = pg.Outcome{Children: make([]pg.Insertion, 1)}
	r.note(&o, &fsm.Encoded{Kind: fsm.KindChildren})
	if o.Record.Unrun {
		t.Error("a step that ran is none")
	}
	if o.TraceContext != "" || o.Children[0].TraceContext != "span" {
		t.Errorf("the outcome carries %+v", o)
	}
	r.watch = watch{skipped: true}
	o = pg.Outcome{}
	r.note(&o, putBack(r))
	if !o.Record.Unrun || o.TraceContext != "" {
		t.Errorf("a step that was not begun noted %+v", o)
	}
}

func TestNamesOfEnds(t *testing.T) {
	t.Parallel()
	for end, want := range map[actors.StepEnd]string{
		actors.EndCommitted: "committed", actors.EndStale: "stale", actors.EndVanished: "vanished", actors.EndAbandoned: "abandoned",
		actors.EndUnknown: "unknown", goesOn: actors.EndContinued,
	} {
		if got := end.String(); got != want {
			t.Errorf("%d is called %q, expected %q", int(end), got, want)
		}
	}
}
