package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// print writes the spans as trees, each below its parent, with what it came to and what it is linked to besides that.
func print(out io.Writer, spans []sdktrace.ReadOnlySpan) {
	slices.SortFunc(spans, func(a, b sdktrace.ReadOnlySpan) int {
		return cmp.Or(cmp.Compare(b.Parent().SpanID().String(), a.Parent().SpanID().String()), a.StartTime().Compare(b.StartTime()))
	})
	names := make(map[trace.SpanID]string)
	for _, s := range spans {
		names[s.SpanContext().SpanID()] = s.Name()
	}
	var below func(parent trace.SpanID, depth int)
	below = func(parent trace.SpanID, depth int) {
		for _, s := range spans {
			if s.Parent().SpanID() != parent {
				continue
			}
			fmt.Fprintf(out, "%s%s%s%s\n", strings.Repeat("    ", depth), s.Name(), outcome(s), links(s, names))
			below(s.SpanContext().SpanID(), depth+1)
		}
	}
	below(trace.SpanID{}, 0)
}

func outcome(s sdktrace.ReadOnlySpan) string {
	for _, a := range s.Attributes() {
		if a.Key == "gendurable.outcome" {
			return ": " + a.Value.AsString()
		}
	}
	return ""
}

func links(s sdktrace.ReadOnlySpan, names map[trace.SpanID]string) string {
	var to []string
	for _, l := range s.Links() {
		if id := l.SpanContext.SpanID(); id != s.Parent().SpanID() {
			to = append(to, names[id])
		}
	}
	if to == nil {
		return ""
	}
	return ", linked to " + strings.Join(to, " and ")
}
