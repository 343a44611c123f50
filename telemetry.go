package gendurable

import (
	"context"
	"fmt"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/internal/telemetry"
	"github.com/gendurable/gendurable/pg"
)

// observe begins to export what this engine does, if there is a provider. See docs/telemetry.md.
func (e *Engine) observe() error {
	queues := make(map[string]telemetry.Queue, len(e.cfg.Queues))
	for name, q := range e.cfg.Queues {
		queues[name] = telemetry.Queue{Counters: e.tree.queueCounters[name].all, Slots: e.slots(name, q)}
	}
	t, err := telemetry.New(telemetry.Config{
		Engine: e.cfg.Name, Tracers: e.cfg.TracerProvider, Meters: e.cfg.MeterProvider,
		Counters: e.tree.counters, Limits: e.tree.limitCounters, Queues: queues,
	})
	if err != nil {
		return fmt.Errorf("gendurable: %w", err)
	}
	e.telemetry, e.Client.tracer = t, t.Tracer()
	return nil
}

// slots says how many steps of a queue may run in this process: each of its lanes that are here has its own.
func (e *Engine) slots(queue string, q Queue) func() int64 {
	return func() int64 {
		lanes := max(1, q.Lanes)
		if q.Lanes > 0 && e.cfg.Cluster != nil {
			lanes = max(1, cluster.LanesHere(e.Members(), queue)) // without a lane, the queue may have a sweeper
		}
		return int64(lanes) * int64(q.Concurrency)
	}
}

// reports is whom actors report to; nil = nobody.
func (e *Engine) reports() actors.Telemetry {
	if e.telemetry == nil {
		return nil // and not an interface that holds a nil
	}
	return e.telemetry
}

// unobserve ends the export of the counters.
func (e *Engine) unobserve() {
	if err := e.telemetry.Close(); err != nil {
		e.log.Warn("gendurable: the counters' export could not be ended", "error", err)
	}
}

// traceInserts begins the span of an insert of several instances, from which their traces go on.
func (c *Client) traceInserts(ctx context.Context, rows []pg.Insertion) telemetry.Call {
	call := c.tracer.Insert(ctx, rows[0].Machine, len(rows))
	if traceparent := call.TraceContext(); traceparent != "" {
		for i := range rows {
			rows[i].TraceContext = traceparent
		}
	}
	return call
}
