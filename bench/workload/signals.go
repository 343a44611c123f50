package workload

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gendurable/gendurable/bench/system"
)

const (
	signalCallers = 8
	signalBatch   = 500
)

var signals = []Workload{
	{
		Name: "signals", Group: "signals", Title: "Parked instances, one call a signal, 8 callers, until all are done", Unit: "signals/s", Per: "signal",
		Fits: can[system.Signals],
		Run: func(ctx context.Context, t *Trial) (Measure, error) {
			return runSignals(ctx, t, 1, func(p *prepared, i int) error { return p.system.(system.Signals).Signal(ctx, i) })
		},
	},
	{
		Name: "signals-bulk", Group: "signals", Title: "Parked instances, 500 signals a call, 8 callers, until all are done", Unit: "signals/s", Per: "signal",
		Fits: can[system.BulkSignals],
		Run: func(ctx context.Context, t *Trial) (Measure, error) {
			return runSignals(ctx, t, 4, nil)
		},
	},
}

// runSignals parks instances, and then measures from the first signal to the end of the last instance. How fast they
// park is a further figure.
func runSignals(ctx context.Context, t *Trial, more float64, one func(*prepared, int) error) (Measure, error) {
	return on(ctx, t, system.Conf{}, func(p *prepared) (m Measure, err error) {
		n := t.sized(t.Contender.Rates.Signals, more, 50)
		s := p.system.(system.Signals)
		if err := s.Start(ctx); err != nil {
			return m, err
		}
		parking := time.Now()
		if err := s.LoadWaiting(ctx, n); err != nil {
			return m, err
		}
		if err := p.parked(ctx, s, n); err != nil {
			return m, err
		}
		m.More = map[string]float64{"inserted and parked/s": float64(n) / time.Since(parking).Seconds()}
		if err := p.db.Settle(ctx); err != nil {
			return m, err
		}
		var start time.Time
		m.Cost, err = p.metered(ctx, func() error {
			if start, err = p.db.Now(ctx); err != nil {
				return err
			}
			if one != nil {
				err = send(n, 1, func(from, _ int) error { return one(p, from) })
			} else {
				err = send(n, signalBatch, func(from, to int) error {
					return p.system.(system.BulkSignals).SignalMany(ctx, from, to)
				})
			}
			if err != nil {
				return err
			}
			return p.waitFor(ctx, n, 12*t.Window+30*time.Second)
		})
		if err != nil {
			return m, err
		}
		ended, err := p.span(ctx, time.Now().Add(time.Hour))
		if err != nil {
			return m, err
		}
		m.Units = ended.total
		m.Figure = float64(ended.total) / ended.last.Sub(start).Seconds()
		t.learn(m.Figure, t.Contender.Rates.Signals*more)
		m.Throughput, err = p.throughput(ctx, start, max(t.Window/20, 50*time.Millisecond), 1)
		return m, err
	})
}

func (p *prepared) parked(ctx context.Context, s system.Signals, n int) error {
	limit := 12*p.trial.Window + 30*time.Second
	for deadline := time.Now().Add(limit); ; {
		got, err := p.count(ctx, s.Parked())
		if err != nil || got >= n {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of %d were parked after %s", got, n, limit)
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// send calls do for parts of n, from signalCallers goroutines, and returns the first error.
func send(n, size int, do func(from, to int) error) error {
	var group sync.WaitGroup
	var next atomic.Int64
	failed := make(chan error, signalCallers)
	for range signalCallers {
		group.Go(func() {
			for len(failed) == 0 {
				from := int(next.Add(int64(size))) - size
				if from >= n {
					return
				}
				if err := do(from, min(from+size, n)); err != nil {
					failed <- fmt.Errorf("signal: %w", err)
					return
				}
			}
		})
	}
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}
