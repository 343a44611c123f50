// Package telemetry turns what an engine counts, measures and does into OpenTelemetry metrics and traces. It is the only
// package that knows OpenTelemetry: actors report to the interface actors.Telemetry, and count in plain counters, which are
// read when somebody collects. Nothing is taken from global providers.
//
// docs/telemetry.md is the contract: its tables are held against this package by a test.
package telemetry

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// Scope is the name of the instrumentation scope of all instruments and spans.
const Scope = "github.com/gendurable/gendurable"

// The attributes of metrics and spans.
const (
	AttrEngine   = "gendurable.engine"
	AttrQueue    = "gendurable.queue"
	AttrMachine  = "gendurable.machine"
	AttrVersion  = "gendurable.version"
	AttrStep     = "gendurable.step"
	AttrOutcome  = "gendurable.outcome"
	AttrEnd      = "gendurable.end"
	AttrResult   = "gendurable.result"
	AttrInstance = "gendurable.instance.id"
	AttrParent   = "gendurable.parent.id"
	AttrAttempt  = "gendurable.attempt"
	AttrSignal   = "gendurable.signal"
	AttrTarget   = "gendurable.target"
	AttrChildren = "gendurable.children"
	AttrCount    = "gendurable.count"
	AttrLink     = "gendurable.link"
)

// Config says what to observe. Providers that are nil are silent.
type Config struct {
	Engine   string
	Tracers  trace.TracerProvider
	Meters   metric.MeterProvider
	Counters *actors.Counters
	Queues   map[string]Queue
	// Limits are the limiter's counters; nil = the engine has no limiter.
	Limits *actors.LimitCounters
}

// Queue is one queue to observe.
type Queue struct {
	// Counters are those of its schedulers in this process; it may be asked at any time.
	Counters func() []*actors.QueueCounters
	// Slots is how many steps of it may run in this process now; it may be asked at any time.
	Slots func() int64
}

// Telemetry is an engine's: it satisfies actors.Telemetry. A nil one may be closed and told of a drain.
type Telemetry struct {
	tracer *Tracer // nil = no traces
	meter  *meter  // nil = no metrics
}

// New starts to observe. It returns nil when there is no provider. The host's providers stay the host's.
func New(c Config) (*Telemetry, error) {
	if c.Tracers == nil && c.Meters == nil {
		return nil, nil
	}
	t := &Telemetry{tracer: NewTracer(c.Tracers, c.Engine)}
	if c.Meters != nil {
		var err error
		if t.meter, err = newMeter(c); err != nil {
			return nil, fmt.Errorf("telemetry: make the instruments: %w", err)
		}
	}
	return t, nil
}

// Close ends the observation of the counters.
func (t *Telemetry) Close() error {
	if t == nil || t.meter == nil {
		return nil
	}
	return t.meter.registration.Unregister()
}

// Tracer returns what makes the spans; nil = none are made.
func (t *Telemetry) Tracer() *Tracer {
	if t == nil {
		return nil
	}
	return t.tracer
}

// Drained tells how long a drain took; err is why it was cut short.
func (t *Telemetry) Drained(took time.Duration, err error) {
	if t == nil || t.meter == nil {
		return
	}
	result := "complete"
	if err != nil {
		result = "cut short"
	}
	t.meter.drain.Record(context.Background(), took.Seconds(), t.meter.engine, metric.WithAttributes(attribute.String(AttrResult, result)))
}

// Claimed implements actors.Telemetry.
func (t *Telemetry) Claimed(queue string, rows []pg.Claimed, took time.Duration) {
	if t.meter == nil {
		return
	}
	ctx, of := context.Background(), t.meter.queues[queue]
	t.meter.claim.Record(ctx, took.Seconds(), of)
	for i := range rows {
		t.meter.latency.Record(ctx, rows[i].Waited.Seconds(), of)
	}
}

// Flushed implements actors.Telemetry.
func (t *Telemetry) Flushed(outcomes int, took time.Duration) {
	if t.meter == nil {
		return
	}
	ctx := context.Background()
	t.meter.flushSize.Record(ctx, int64(outcomes), t.meter.engine)
	t.meter.flush.Record(ctx, took.Seconds(), t.meter.engine)
}

// StepBegins implements actors.Telemetry.
func (t *Telemetry) StepBegins(ctx context.Context, row *pg.Claimed) (context.Context, actors.StepSpan) {
	s := &stepSpan{t: t, row: row}
	if t.tracer != nil {
		ctx = t.tracer.beginStep(ctx, row)
		s.span = trace.SpanFromContext(ctx)
	}
	return ctx, s
}

// stepSpan is a step that runs.
type stepSpan struct {
	t    *Telemetry
	row  *pg.Claimed
	span trace.Span // nil = no traces
}

// TraceContext implements actors.StepSpan.
func (s *stepSpan) TraceContext() (traceparent string, keep bool) {
	if s.span == nil {
		return s.row.TraceContext, false
	}
	c := s.span.SpanContext()
	if !c.IsValid() { // the provider is one that does nothing
		return s.row.TraceContext, false
	}
	return format(c), c.IsSampled() || s.row.TraceContext == ""
}

// Ended implements actors.StepSpan.
func (s *stepSpan) Ended(r actors.StepReport) {
	if s.span != nil {
		endStep(s.span, r)
	}
	if m := s.t.meter; m != nil {
		outcome := r.Outcome
		if outcome == "" {
			outcome = "none"
		}
		m.step.Record(context.Background(), r.Ran.Seconds(), m.queues[s.row.Queue], metric.WithAttributes(
			attribute.String(AttrMachine, s.row.Machine), attribute.String(AttrStep, s.row.Step), attribute.String(AttrOutcome, outcome)))
	}
}
