package workload

import (
	"context"
	"time"

	"github.com/gendurable/gendurable/bench/system"
)

var fanOut = []Workload{{
	Name: "fan-out", Group: "fan-out", Title: "A parent of 10,000 children (fewer where those take too long), and the join", Unit: "children/s", Per: "child",
	Fits: can[system.FanOut],
	Run:  runFanOut,
}}

// runFanOut measures from the insert of the parent to the end of the last instance.
func runFanOut(ctx context.Context, t *Trial) (Measure, error) {
	return on(ctx, t, system.Conf{}, func(p *prepared) (m Measure, err error) {
		n := min(t.sized(t.Contender.Rates.Children, 1, 50), 10_000)
		s := p.system.(system.FanOut)
		if err := s.Start(ctx); err != nil {
			return m, err
		}
		if err := p.db.Settle(ctx); err != nil {
			return m, err
		}
		var start time.Time
		m.Cost, err = p.metered(ctx, func() error {
			if start, err = p.db.Now(ctx); err != nil {
				return err
			}
			if err := s.Parent(ctx, n); err != nil {
				return err
			}
			return p.waitFor(ctx, n+1, 12*t.Window+30*time.Second)
		})
		if err != nil {
			return m, err
		}
		ended, err := p.span(ctx, time.Now().Add(time.Hour))
		if err != nil {
			return m, err
		}
		m.Units = n
		m.Figure = float64(n) / ended.last.Sub(start).Seconds()
		t.learn(m.Figure, t.Contender.Rates.Children)
		return m, nil
	})
}
