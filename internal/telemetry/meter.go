package telemetry

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// meter holds the instruments of an engine.
type meter struct {
	registration metric.Registration
	watched      []watched

	flushSize                          metric.Int64Histogram
	flush, claim, latency, step, drain metric.Float64Histogram

	// engine and queues are the attributes of what is recorded, made once.
	engine metric.MeasurementOption
	queues map[string]metric.MeasurementOption
}

// watched is a number that is read when somebody collects.
type watched struct {
	to    metric.Int64Observable
	value func() int64
	attrs metric.MeasurementOption
}

// The boundaries of the histograms: of times from half a millisecond to an hour, of batches up to MaxBatch and beyond.
var (
	seconds = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	batches = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000}
)

func newMeter(c Config) (*meter, error) {
	provider := c.Meters.Meter(Scope)
	name := attribute.String(AttrEngine, c.Engine)
	m := &meter{
		engine: metric.WithAttributeSet(attribute.NewSet(name)), queues: make(map[string]metric.MeasurementOption, len(c.Queues)),
	}
	var errs []error
	times := func(of Metric) metric.Float64Histogram {
		h, err := provider.Float64Histogram(of.Name, metric.WithUnit(of.Unit), metric.WithDescription(of.Help),
			metric.WithExplicitBucketBoundaries(seconds...))
		errs = append(errs, err)
		return h
	}
	m.flush, m.claim, m.latency = times(flushDuration), times(claimDuration), times(queueLatency)
	m.step, m.drain = times(stepDuration), times(drainDuration)
	var err error
	m.flushSize, err = provider.Int64Histogram(flushSize.Name, metric.WithUnit(flushSize.Unit),
		metric.WithDescription(flushSize.Help), metric.WithExplicitBucketBoundaries(batches...))
	errs = append(errs, err)

	instruments := instruments{provider: provider, made: map[string]metric.Int64Observable{}}
	watch(m, &instruments, ofEngine, only(c.Counters), name)
	if c.Limits != nil {
		watch(m, &instruments, ofLimits, only(c.Limits), name)
	}
	for queue, q := range c.Queues {
		attrs := []attribute.KeyValue{name, attribute.String(AttrQueue, queue)}
		m.queues[queue] = metric.WithAttributeSet(attribute.NewSet(attrs...))
		watch(m, &instruments, ofQueue, q.Counters, attrs...)
		m.watched = append(m.watched, watched{instruments.make(concurrency), q.Slots, m.queues[queue]})
	}
	if err := errors.Join(append(errs, instruments.errs...)...); err != nil {
		return nil, err
	}
	m.registration, err = provider.RegisterCallback(m.collect, instruments.all...)
	return m, err
}

// only is a set of counters that stays one.
func only[C any](counters *C) func() []*C { return func() []*C { return []*C{counters} } }

// watch adds the series of counters to what is collected: of several sets the sum, or of a largest one the largest.
func watch[C any](m *meter, made *instruments, metrics []observed[C], counters func() []*C, attrs ...attribute.KeyValue) {
	for _, of := range metrics {
		to := made.make(of.Metric)
		for _, s := range of.series {
			own := append([]attribute.KeyValue{}, attrs...)
			if s.value != "" {
				own = append(own, attribute.String(of.Attributes[0], s.value))
			}
			m.watched = append(m.watched, watched{to, load(counters, s.of, strings.HasSuffix(of.Name, ".largest")), metric.WithAttributeSet(attribute.NewSet(own...))})
		}
	}
}

func load[C any](counters func() []*C, of func(*C) *atomic.Int64, largest bool) func() int64 {
	return func() (n int64) {
		for _, c := range counters() {
			if one := of(c).Load(); largest {
				n = max(n, one)
			} else {
				n += one
			}
		}
		return n
	}
}

// collect reads all counters; they cost nothing in between.
func (m *meter) collect(_ context.Context, o metric.Observer) error {
	for _, w := range m.watched {
		o.ObserveInt64(w.to, w.value(), w.attrs)
	}
	return nil
}

// instruments makes each instrument once, whatever the number of queues.
type instruments struct {
	provider metric.Meter
	made     map[string]metric.Int64Observable
	all      []metric.Observable
	errs     []error
}

func (i *instruments) make(of Metric) metric.Int64Observable {
	if to := i.made[of.Name]; to != nil {
		return to
	}
	var to metric.Int64Observable
	var err error
	if of.Kind == Counter {
		to, err = i.provider.Int64ObservableCounter(of.Name, metric.WithUnit(of.Unit), metric.WithDescription(of.Help))
	} else {
		to, err = i.provider.Int64ObservableGauge(of.Name, metric.WithUnit(of.Unit), metric.WithDescription(of.Help))
	}
	i.errs = append(i.errs, err)
	i.made[of.Name], i.all = to, append(i.all, to)
	return to
}
