package gendurable_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// journey goes through every kind of transition: on, inline, a signal, children, the end.
func journey() *fsm.Machine[number] {
	return fsm.New[number]("journey", fsm.History()).
		Step("first", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.Next("second").Inline(), nil
		}).
		Step("second", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			if c.Attempt == 0 {
				return fsm.Retry(0), nil
			}
			return fsm.Await("go").Then("third"), nil
		}).
		Step("third", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.ScheduleChildren(double.New(number{1}), double.New(number{2})).Then("last"), nil
		}).
		Step("last", func(_ context.Context, c *fsm.Call[number]) (fsm.Outcome, error) {
			return fsm.Done(len(c.Children)), nil
		})
}

// travel takes one instance through it, and stops the engine.
func travel(t *testing.T, pool *pgxpool.Pool, cfg gendurable.Config) (*gendurable.Engine, gendurable.ID) {
	t.Helper()
	m := journey()
	cfg.Machines = []fsm.Definition{m, double}
	engine := start(t, pool, cfg)
	id := insert(t, engine, m.New(number{}))
	if s := await(t, engine, id); s.Status != fsm.AwaitingSignal {
		t.Fatalf("it is %+v", s)
	}
	if err := engine.Signal(t.Context(), id, "go", nil); err != nil {
		t.Fatal(err)
	}
	if s := await(t, engine, id, gendurable.UntilTerminal()); !s.Done() {
		t.Fatalf("it came to %+v", s)
	}
	return engine, id
}

// TestSpansAreTheContract holds the table of spans in docs/telemetry.md against what an exporter gets, both ways.
func TestSpansAreTheContract(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	engine, _ := travel(t, database(t), gendurable.Config{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))})
	stop(t, engine)
	got := map[string][]string{}
	for _, s := range exporter.GetSpans() {
		verb, _, _ := strings.Cut(s.Name, " ")
		of := verb + " " + s.SpanKind.String()
		for _, a := range s.Attributes {
			if !slices.Contains(got[of], string(a.Key)) {
				got[of] = append(got[of], string(a.Key))
			}
		}
	}
	want := map[string][]string{}
	row := regexp.MustCompile("(?m)^\\| `(\\w+) <[^|]*\\| (\\w+) \\|[^|]*\\|([^|]*)\\|$")
	for _, m := range row.FindAllStringSubmatch(read(t, "docs/telemetry.md"), -1) {
		attrs := []string{"gendurable.engine"}
		for _, a := range codeSpan.FindAllStringSubmatch(m[3], -1) {
			attrs = append(attrs, a[1])
		}
		want[m[1]+" "+m[2]] = attrs
	}
	if len(want) != 3 {
		t.Fatalf("the guide has the spans %v", want)
	}
	for of := range got {
		slices.Sort(got[of])
		slices.Sort(want[of])
		if !slices.Equal(got[of], want[of]) {
			t.Errorf("spans %q have the attributes %v, the guide says %v", of, got[of], want[of])
		}
	}
	if len(got) != len(want) {
		t.Errorf("spans %v, the guide has %v", got, want)
	}
}

// TestOneTraceFromInsertToEnd: every step is a child of the span before it, the inline one too, and linked to it.
func TestOneTraceFromInsertToEnd(t *testing.T) {
	t.Parallel()
	exporter := tracetest.NewInMemoryExporter()
	tracing := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	engine, _ := travel(t, database(t), gendurable.Config{TracerProvider: tracing})
	stop(t, engine)
	spans := map[trace.SpanID]tracetest.SpanStub{}
	var last tracetest.SpanStub
	for _, s := range exporter.GetSpans() {
		spans[s.SpanContext.SpanID()] = s
		if s.Name == "step journey.last" {
			last = s
		}
	}
	var links []string
	for _, l := range last.Links {
		links = append(links, spans[l.SpanContext.SpanID()].Name)
	}
	if want := []string{"step journey.third", "step double.run", "step double.run"}; !slices.Equal(links, want) {
		t.Errorf("the last step is linked to %q, expected %q", links, want)
	}
	var path []string
	for s := last; s.SpanContext.IsValid(); s = spans[s.Parent.SpanID()] {
		path = append(path, s.Name)
		if s.SpanContext.TraceID() != last.SpanContext.TraceID() {
			t.Errorf("%s is in another trace", s.Name)
		}
		if strings.HasPrefix(s.Name, "step journey.") && !slices.ContainsFunc(s.Links, func(l sdktrace.Link) bool {
			return l.SpanContext.SpanID() == s.Parent.SpanID()
		}) {
			t.Errorf("%s is not linked to the span before it", s.Name)
		}
	}
	slices.Reverse(path)
	want := []string{"insert journey", "step journey.first", "step journey.second", "step journey.second", "step journey.third", "step journey.last"}
	if !slices.Equal(path, want) {
		t.Errorf("the trace is %q, expected %q", path, want)
	}
}

// TestATraceThatNobodyRecords: the decision is kept in the row, which is written once and then never again.
func TestATraceThatNobodyRecords(t *testing.T) {
	t.Parallel()
	pool := database(t)
	exporter := tracetest.NewInMemoryExporter()
	engine, _ := travel(t, pool, gendurable.Config{TracerProvider: sdktrace.NewTracerProvider(
		sdktrace.WithSyncer(exporter), sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())))})
	stop(t, engine)
	if n := len(exporter.GetSpans()); n != 0 {
		t.Errorf("%d spans were exported", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE trace_context LIKE '00-%-00'`); n != 3 {
		t.Errorf("%d rows carry the decision, expected the instance and its children", n)
	}
	if n := count(t, pool, `SELECT count(DISTINCT split_part(trace_context, '-', 2)) FROM gen_durable`); n != 1 {
		t.Errorf("they are in %d traces", n)
	}
}

// TestSilentWithoutProviders: no row knows of any trace.
func TestSilentWithoutProviders(t *testing.T) {
	t.Parallel()
	pool := database(t)
	engine, _ := travel(t, pool, gendurable.Config{})
	stop(t, engine)
	if n := count(t, pool, `SELECT count(trace_context) FROM gen_durable`); n != 0 {
		t.Errorf("%d rows have a trace", n)
	}
}

// TestHistory reads what the journey left, page by page.
func TestHistory(t *testing.T) {
	t.Parallel()
	pool := database(t)
	engine, id := travel(t, pool, gendurable.Config{})
	var got []string
	var page gendurable.HistoryPage
	for page.Limit = 2; ; {
		list, err := engine.History(t.Context(), id, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(list) == 0 {
			break
		}
		for _, h := range list {
			got = append(got, fmt.Sprintf("%s/%d %s %s %s", h.Step, h.Attempt, h.Outcome, h.Next, h.Status))
			page.After = h.Seq
			if h.Worker == "" || h.At.IsZero() || h.Took < 0 {
				t.Errorf("a transition is %+v", h)
			}
		}
	}
	want := []string{
		"first/0 next second executing", "second/0 retry second runnable", "second/1 await third awaiting_signal",
		"third/0 children last awaiting_children", "last/0 done  done",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the history is\n%q, expected\n%q", got, want)
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable_history WHERE instance_id <> $1`, id); n != 0 {
		t.Errorf("%d records of machines that keep no history", n)
	}
	for _, bad := range []gendurable.HistoryPage{{Limit: -1}, {Limit: gendurable.MaxHistory + 1}, {After: -1}} {
		if _, err := engine.History(t.Context(), id, bad); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

// TestMetricsOfAnEngine reads what a reader of the host gets while an engine runs, and after its end.
func TestMetricsOfAnEngine(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	engine, _ := travel(t, database(t), gendurable.Config{MeterProvider: metric.NewMeterProvider(metric.WithReader(reader))})
	var got map[string]int64
	eventually(t, "all steps are counted", func() bool {
		got = collect(t, reader)
		return got["gendurable.steps committed"] == 6 && got["gendurable.queue.latency"] >= 6
	})
	for name, want := range map[string]int64{
		"gendurable.steps continued": 1, "gendurable.steps stale": 0, "gendurable.outcomes": 7, "gendurable.queue.concurrency": 10,
		"gendurable.step.duration": 7,
	} {
		if got[name] != want {
			t.Errorf("%s is %d, expected %d", name, got[name], want)
		}
	}
	if got["gendurable.flush.size"] != got["gendurable.flushes"] || got["gendurable.flush.duration"] != got["gendurable.flushes"] {
		t.Errorf("of %d flushes, %d sizes and %d durations", got["gendurable.flushes"], got["gendurable.flush.size"], got["gendurable.flush.duration"])
	}
	if got["gendurable.claim.duration"] == 0 {
		t.Error("no claim was measured")
	}
	stop(t, engine)
	got = collect(t, reader)
	if _, still := got["gendurable.flushes"]; still || got["gendurable.drain.duration"] != 1 {
		t.Errorf("after the end: %v", got)
	}
}

// collect is the sum of each metric, by its end if it has one; of a histogram, how often it was recorded.
func collect(t *testing.T, reader metric.Reader) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	sums := map[string]int64{}
	add := func(name string, points []metricdata.DataPoint[int64]) {
		for _, p := range points {
			of := name
			if end, ok := p.Attributes.Value("gendurable.end"); ok {
				of += " " + end.AsString()
			}
			sums[of] += p.Value
		}
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				add(m.Name, d.DataPoints)
			case metricdata.Gauge[int64]:
				add(m.Name, d.DataPoints)
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					sums[m.Name] += int64(p.Count)
				}
			case metricdata.Histogram[int64]:
				for _, p := range d.DataPoints {
					sums[m.Name] += int64(p.Count)
				}
			}
		}
	}
	return sums
}
