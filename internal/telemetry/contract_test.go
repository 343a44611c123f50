package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// everything is a Telemetry with a limiter and two queues, on the reader, to which everything has happened once.
func everything(t *testing.T, reader metric.Reader) {
	t.Helper()
	o, err := New(Config{
		Engine: "e", Meters: metric.NewMeterProvider(metric.WithReader(reader)), Counters: new(actors.Counters), Limits: new(actors.LimitCounters),
		Queues: map[string]Queue{"a": {only(new(actors.QueueCounters)), func() int64 { return 3 }}, "b": {only(new(actors.QueueCounters)), func() int64 { return 4 }}},
	})
	if err != nil {
		t.Fatal(err)
	}
	o.Flushed(3, time.Millisecond)
	o.Claimed("a", []pg.Claimed{{Waited: time.Second}}, time.Millisecond)
	_, span := o.StepBegins(t.Context(), &pg.Claimed{Queue: "a", Machine: "m", Step: "s"})
	span.Ended(actors.StepReport{Outcome: "next", End: actors.EndContinued})
	o.Drained(time.Second, errors.New("cut"))
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestTheTablesOfTheGuide holds docs/telemetry.md against the code, both ways.
func TestTheTablesOfTheGuide(t *testing.T) {
	t.Parallel()
	written := map[string]string{}
	row := regexp.MustCompile("(?m)^\\| `(gendurable\\.[a-z_.]+)` \\| (counter|gauge|histogram) \\| `([^`]+)` \\| ([^|]*) \\| (.+) \\|$")
	for _, m := range row.FindAllStringSubmatch(read(t, "telemetry.md"), -1) {
		if written[m[1]] != "" {
			t.Errorf("the guide has %s twice", m[1])
		}
		written[m[1]] = strings.Join(m[2:5], " | ")
	}
	coded := map[string]string{}
	for _, m := range Metrics() {
		var attrs []string
		for _, a := range m.Attributes {
			attrs = append(attrs, "`"+a+"`")
		}
		coded[m.Name] = fmt.Sprintf("%s | %s | %s", m.Kind, m.Unit, strings.Join(attrs, ", "))
	}
	for name, want := range coded {
		if got := written[name]; got != want {
			t.Errorf("docs/telemetry.md says of %s %q, the code %q", name, got, want)
		}
	}
	for name := range written {
		if coded[name] == "" {
			t.Errorf("docs/telemetry.md has %s, the code has not", name)
		}
	}
}

// TestWhatIsExportedIsTheContract collects what an engine exports and holds it against Metrics, both ways.
func TestWhatIsExportedIsTheContract(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	everything(t, reader)
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	if len(all.ScopeMetrics) != 1 || all.ScopeMetrics[0].Scope.Name != Scope {
		t.Fatalf("the scopes are %+v", all.ScopeMetrics)
	}
	exported := map[string]string{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		kind, attrs := shape(t, m)
		exported[m.Name] = fmt.Sprintf("%s %s %v %s", kind, m.Unit, attrs, m.Description)
	}
	for _, m := range Metrics() {
		attrs := append([]string{AttrEngine}, m.Attributes...)
		slices.Sort(attrs)
		if got, want := exported[m.Name], fmt.Sprintf("%s %s %v %s", m.Kind, m.Unit, attrs, m.Help); got != want {
			t.Errorf("%s is exported as %q, the contract says %q", m.Name, got, want)
		}
		delete(exported, m.Name)
	}
	if len(exported) > 0 {
		t.Errorf("exported without being in the contract: %v", slices.Collect(maps.Keys(exported)))
	}
}

// shape is the kind of a metric and the attributes of its points.
func shape(t *testing.T, m metricdata.Metrics) (Kind, []string) {
	t.Helper()
	attrs := map[string]bool{}
	var kind Kind
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		if kind = Counter; !d.IsMonotonic {
			t.Errorf("%s may fall", m.Name)
		}
		for _, p := range d.DataPoints {
			for _, a := range p.Attributes.ToSlice() {
				attrs[string(a.Key)] = true
			}
		}
	case metricdata.Gauge[int64]:
		kind = Gauge
		for _, p := range d.DataPoints {
			for _, a := range p.Attributes.ToSlice() {
				attrs[string(a.Key)] = true
			}
		}
	case metricdata.Histogram[float64]:
		kind = Histogram
		for _, a := range d.DataPoints[0].Attributes.ToSlice() {
			attrs[string(a.Key)] = true
		}
	case metricdata.Histogram[int64]:
		kind = Histogram
		for _, a := range d.DataPoints[0].Attributes.ToSlice() {
			attrs[string(a.Key)] = true
		}
	}
	return kind, slices.Sorted(maps.Keys(attrs))
}

// derived are counters that are sums of others.
var derived = []string{"Ended"}

// TestEveryCounterIsExported finds counters that no metric reads, and those that two read.
func TestEveryCounterIsExported(t *testing.T) {
	t.Parallel()
	covered(t, ofEngine)
	covered(t, ofQueue)
	covered(t, ofLimits)
}

func covered[C any](t *testing.T, metrics []observed[C]) {
	t.Helper()
	counters := new(C)
	times := map[*atomic.Int64]int{}
	for _, m := range metrics {
		for _, s := range m.series {
			times[s.of(counters)]++
		}
	}
	v := reflect.ValueOf(counters).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		want := 1
		if slices.Contains(derived, name) {
			want = 0
		}
		if n := times[v.Field(i).Addr().Interface().(*atomic.Int64)]; n != want {
			t.Errorf("%d metrics read %T.%s, expected %d: every counter is in a table of internal/telemetry/metrics.go", n, *counters, name, want)
		}
	}
}

// TestTheDashboardAndTheAlertsNameWhatExists looks for each metric and label of the two files in what a Prometheus gets.
func TestTheDashboardAndTheAlertsNameWhatExists(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	if err != nil {
		t.Fatal(err)
	}
	everything(t, reader)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, f := range families {
		known[f.GetName()] = true
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				known[l.GetName()] = true
			}
			if m.GetHistogram() != nil {
				for _, suffix := range []string{"_bucket", "_sum", "_count"} {
					known[f.GetName()+suffix] = true
				}
			}
		}
	}
	dashboard := read(t, "grafana/gendurable.json")
	if !json.Valid([]byte(dashboard)) {
		t.Error("docs/grafana/gendurable.json is no JSON")
	}
	word := regexp.MustCompile(`gendurable_\w+`)
	for file, text := range map[string]string{"grafana/gendurable.json": dashboard, "prometheus/alerts.yml": read(t, "prometheus/alerts.yml")} {
		named := word.FindAllString(text, -1)
		if len(named) < 10 {
			t.Errorf("docs/%s names only %d metrics", file, len(named))
		}
		for _, name := range named {
			if !known[name] {
				t.Errorf("docs/%s names %s, which nobody exports", file, name)
			}
		}
	}
}

// TestSilence: without providers there is nothing, and what there is not can be told and closed.
func TestSilence(t *testing.T) { // not parallel: it counts allocations
	o, err := New(Config{Engine: "e", Counters: new(actors.Counters)})
	if o != nil || err != nil {
		t.Fatalf("got %v, %v", o, err)
	}
	o.Drained(time.Second, nil)
	if err := o.Close(); err != nil || o.Tracer() != nil {
		t.Errorf("a telemetry that is none: %v", err)
	}
	ctx := context.Background()
	var tracer *Tracer
	if n := testing.AllocsPerRun(100, func() {
		call := tracer.Insert(ctx, "m", 1)
		call.Inserted(1)
		if call.TraceContext() != "" {
			t.Error("there is a trace context")
		}
		call.End(nil)
		call = tracer.Signal(ctx, "n", 1)
		call.Delivered(1)
		call.End(nil)
	}); n != 0 {
		t.Errorf("a tracer that is none allocates %v times a call", n)
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
