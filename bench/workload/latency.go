package workload

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gendurable/gendurable/bench/system"
)

var latencies = []Workload{
	{
		Name: "latency", Group: "latency", Title: "One job on an idle system, insert to result in the caller", Unit: "ms p50", Per: "job", Lower: true,
		Fits: can[system.Latency],
		Run:  func(ctx context.Context, t *Trial) (Measure, error) { return runLatency(ctx, t, false) },
	},
	{
		Name: "latency-beside", Group: "latency", Title: "The same while one slot is busy for long", Unit: "ms p50", Per: "job", Lower: true,
		Fits: func(_ system.Contender, s system.System) bool {
			_, ok := s.(system.Latency)
			_, long := s.(system.Occupier)
			return ok && long
		},
		Run: func(ctx context.Context, t *Trial) (Measure, error) { return runLatency(ctx, t, true) },
	},
}

// runLatency lets one caller run one job at a time.
func runLatency(ctx context.Context, t *Trial, beside bool) (Measure, error) {
	return on(ctx, t, system.Conf{}, func(p *prepared) (m Measure, err error) {
		s := p.system.(system.Latency)
		if err := s.Start(ctx); err != nil {
			return m, err
		}
		warm := 0
		for end := time.Now().Add(t.Window / 2); warm < 30 && (warm < 2 || time.Now().Before(end)); warm++ {
			if err := once(ctx, s); err != nil {
				return m, err
			}
		}
		if beside {
			wait, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			release, err := p.system.(system.Occupier).Occupy(wait, 1)
			if err != nil {
				return m, fmt.Errorf("keep a slot busy: %w", err)
			}
			defer release()
		}
		m.Cost, err = p.metered(ctx, func() error {
			if err := m.repeat(ctx, s, t.Window); err != nil {
				return err
			}
			if ended, err := p.ended(ctx); err != nil || ended < len(m.Latencies)+warm {
				return fmt.Errorf("%d results were seen, %d jobs ended by the database (%w)", len(m.Latencies)+warm, ended, err)
			}
			return nil
		})
		m.Units = len(m.Latencies)
		m.finish()
		return m, err
	})
}

// repeat measures one job after the other for the window, with a pause between them that differs each time, so that
// they hit whatever ticks in the system at different moments.
func (m *Measure) repeat(ctx context.Context, s system.Latency, window time.Duration) error {
	for end := time.Now().Add(window); time.Now().Before(end) || len(m.Latencies) < 3; {
		start := time.Now()
		if err := once(ctx, s); err != nil {
			return err
		}
		m.Latencies = append(m.Latencies, millis(time.Since(start)))
		if err := pause(ctx, time.Duration(len(m.Latencies)*7%40)*100*time.Microsecond); err != nil {
			return err
		}
	}
	return nil
}

func once(ctx context.Context, s system.Latency) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return s.Once(ctx)
}

// finish sorts the latencies and takes the figures from them.
func (m *Measure) finish() {
	slices.Sort(m.Latencies)
	m.Figure = Quantile(m.Latencies, 0.5)
	if m.More == nil {
		m.More = map[string]float64{}
	}
	m.More["p99 ms"] = Quantile(m.Latencies, 0.99)
}

// Quantile is the q-th quantile of sorted values, 0 of none.
func Quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
