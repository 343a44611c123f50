package scheduler

import (
	"context"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// watch is what telemetry and the history want to know of the step that a run is at. The zero value wants nothing, and
// costs nothing.
type watch struct {
	span   actors.StepSpan // nil = no telemetry
	begun  time.Time       // zero = nobody asks how long the code runs
	report actors.StepReport
	// skipped says that the outcome is no step's: a chain is put back instead of going on.
	skipped bool
}

// begin starts to watch a step, if anybody asks for it, and returns the context for its code.
func (s *step) begin(r *run) context.Context {
	r.watch = watch{}
	ctx := r.ctx
	if s.cfg.Telemetry != nil {
		ctx, r.watch.span = s.cfg.Telemetry.StepBegins(ctx, r.at)
	}
	if r.watch.span != nil || r.spec.History {
		r.watch.begun = time.Now()
	}
	return ctx
}

// ran notes that the code has ended. Its error handler, should the database refuse the outcome, is not counted.
func (w *watch) ran() {
	if !w.begun.IsZero() {
		w.report.Ran = time.Since(w.begun)
	}
}

// note adds to an outcome what the history and the trace need.
func (r *run) note(o *pg.Outcome, e *fsm.Encoded) {
	if r.spec != nil && r.spec.History {
		o.Record = &pg.Record{Step: r.at.Step, Attempt: r.at.Attempt, Took: r.watch.report.Ran, Unrun: r.watch.skipped}
	}
	if r.watch.span == nil {
		return
	}
	r.watch.report.Outcome, r.watch.report.Error, r.watch.report.Children = string(e.Kind), e.Error, len(o.Children)
	traceparent, keep := r.watch.span.TraceContext()
	if keep {
		o.TraceContext = traceparent
	}
	for i := range o.Children {
		o.Children[i].TraceContext = traceparent
	}
}

// goOn is the trace context for the next step of a chain.
func (w *watch) goOn(before string) string {
	if w.span == nil {
		return before
	}
	traceparent, _ := w.span.TraceContext()
	return traceparent
}

// end ends the span of a step.
func (w *watch) end(e actors.StepEnded) {
	if w.span == nil {
		return
	}
	w.report.End = e.End.String()
	w.span.Ended(w.report)
	w.span = nil
}
