package telemetry

import (
	"context"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// maxLinks bounds the links of a span: to the signals a step was woken by, and to its children.
const maxLinks = 100

// Tracer makes the spans of an engine or a client. A nil one makes none, and costs nothing.
type Tracer struct {
	tracer trace.Tracer
	engine attribute.KeyValue
}

// NewTracer returns a Tracer on the host's provider; nil when there is none.
func NewTracer(p trace.TracerProvider, engine string) *Tracer {
	if p == nil {
		return nil
	}
	return &Tracer{tracer: p.Tracer(Scope), engine: attribute.String(AttrEngine, engine)}
}

// Call is the span of a call of the host: an insert or a signal. The zero value is none.
type Call struct{ span trace.Span }

// Insert begins the span of an insert of n instances, the first of this machine.
func (t *Tracer) Insert(ctx context.Context, machine string, n int) Call {
	if t == nil {
		return Call{}
	}
	return t.call(ctx, "insert "+machine, attribute.String(AttrMachine, machine), attribute.Int(AttrCount, n))
}

// Signal begins the span of a delivery of n signals, the first of this name.
func (t *Tracer) Signal(ctx context.Context, name string, n int) Call {
	if t == nil {
		return Call{}
	}
	return t.call(ctx, "signal "+name, attribute.String(AttrSignal, name), attribute.Int(AttrCount, n))
}

func (t *Tracer) call(ctx context.Context, name string, attrs ...attribute.KeyValue) Call {
	_, span := t.tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(append(attrs, t.engine)...))
	return Call{span}
}

// TraceContext is the span as a traceparent; empty = there is none.
func (c Call) TraceContext() string {
	if c.span == nil {
		return ""
	}
	return format(c.span.SpanContext())
}

// Inserted notes the instance that a single insert made, or met.
func (c Call) Inserted(id int64) { c.note(AttrInstance, id) }

// Delivered notes the instance that a single signal went to.
func (c Call) Delivered(id int64) { c.note(AttrTarget, id) }

func (c Call) note(attr string, id int64) {
	if c.span != nil {
		c.span.SetAttributes(attribute.Int64(attr, id))
	}
}

// End ends the span; err is the call's.
func (c Call) End(err error) {
	if c.span == nil {
		return
	}
	if err != nil {
		c.span.SetStatus(codes.Error, err.Error())
	}
	c.span.End()
}

// beginStep begins the span of a step: a child of the span before it in the instance's life, linked to what woke it.
func (t *Tracer) beginStep(ctx context.Context, row *pg.Claimed) context.Context {
	attrs := []attribute.KeyValue{
		t.engine, attribute.String(AttrQueue, row.Queue), attribute.Int64(AttrInstance, row.ID),
		attribute.String(AttrMachine, row.Machine), attribute.Int(AttrVersion, row.Version),
		attribute.String(AttrStep, row.Step), attribute.Int(AttrAttempt, row.Attempt),
	}
	if row.ParentID != 0 {
		attrs = append(attrs, attribute.Int64(AttrParent, row.ParentID))
	}
	ctx, _ = t.tracer.Start(parse(ctx, row.TraceContext), "step "+row.Machine+"."+row.Step,
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithLinks(linksOf(row)...),
		trace.WithAttributes(attrs...))
	return ctx
}

// linksOf are links to the span before, to the signals that the step awaited, and to the last steps of its children.
func linksOf(row *pg.Claimed) []trace.Link {
	var links []trace.Link
	add := func(traceparent, what string) {
		if len(links) >= maxLinks {
			return
		}
		if c := trace.SpanContextFromContext(parse(context.Background(), traceparent)); c.IsValid() {
			links = append(links, trace.Link{SpanContext: c, Attributes: []attribute.KeyValue{attribute.String(AttrLink, what)}})
		}
	}
	add(row.TraceContext, "previous")
	for i := range row.Inbox {
		if slices.Contains(row.Awaits, row.Inbox[i].Name) {
			add(row.Inbox[i].TraceContext, "signal")
		}
	}
	for i := range row.Children {
		add(row.Children[i].TraceContext, "child")
	}
	return links
}

func endStep(span trace.Span, r actors.StepReport) {
	attrs := []attribute.KeyValue{attribute.String(AttrEnd, r.End)}
	if r.Outcome != "" {
		attrs = append(attrs, attribute.String(AttrOutcome, r.Outcome))
	}
	if r.Children > 0 {
		attrs = append(attrs, attribute.Int(AttrChildren, r.Children))
	}
	span.SetAttributes(attrs...)
	switch {
	case r.Error != "":
		span.SetStatus(codes.Error, r.Error)
	case r.End != actors.EndCommitted.String() && r.End != actors.EndContinued:
		span.SetStatus(codes.Error, "the outcome was not committed: "+r.End)
	}
	span.End()
}

// traceparent carries the one header of the W3C trace context that is stored.
type traceparent struct{ value string }

const header = "traceparent"

// Get implements propagation.TextMapCarrier.
func (t *traceparent) Get(key string) string {
	if strings.EqualFold(key, header) {
		return t.value
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (t *traceparent) Set(key, value string) {
	if strings.EqualFold(key, header) {
		t.value = value
	}
}

// Keys implements propagation.TextMapCarrier.
func (t *traceparent) Keys() []string { return []string{header} }

// format writes a span as a traceparent; one that is not valid gives the empty string.
func format(c trace.SpanContext) string {
	var t traceparent
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), c), &t)
	return t.value
}

// parse puts the span of a traceparent into a context, as the parent of the next one. What is not valid changes nothing.
func parse(ctx context.Context, text string) context.Context {
	if text == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, &traceparent{text})
}
