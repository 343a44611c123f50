package workload

import (
	"context"
	"time"

	"github.com/gendurable/gendurable/bench/system"
)

// backlogs are worked off as fast as the system can.
var backlogs = []Workload{
	{
		Name: "jobs", Group: "jobs", Title: "Jobs of one step, from a backlog", Unit: "jobs/s", Per: "job",
		Fits: can[system.Jobs],
		Run:  runJobs,
	},
	{
		Name: "steps", Group: "steps", Title: "Chains of ten steps, each committed and claimed anew", Unit: "steps/s", Per: "step",
		Fits: can[system.Steps],
		Run:  runSteps(func(s system.System) loader { return s.(system.Steps).LoadChains }),
	},
	{
		Name: "inline", Group: "steps", Title: "Chains of ten steps, each committed, whose row stays with its worker",
		Unit: "steps/s", Per: "step",
		Fits: can[system.Inline],
		Run:  runSteps(func(s system.System) loader { return s.(system.Inline).LoadInline }),
	},
}

// patience is how long a run waits, beyond its window, for the first unit to end.
const patience = 10 * time.Second

// runJobs loads more jobs than the system can do in the window and counts those that ended in it.
func runJobs(ctx context.Context, t *Trial) (Measure, error) {
	return on(ctx, t, system.Conf{}, func(p *prepared) (m Measure, err error) {
		n, err := t.load(ctx, t.sized(t.Contender.Rates.Jobs, 1.2, 200), p.system.(system.Jobs).LoadJobs)
		if err != nil {
			return m, err
		}
		if err := p.db.Settle(ctx); err != nil {
			return m, err
		}
		var start, until time.Time
		m.Cost, err = p.metered(ctx, func() error {
			if start, err = p.db.Now(ctx); err != nil {
				return err
			}
			if err := p.system.Start(ctx); err != nil {
				return err
			}
			if err := p.work(ctx, n); err != nil {
				return err
			}
			until, err = p.db.Now(ctx)
			return err
		})
		if err != nil {
			return m, err
		}
		s, err := p.span(ctx, until)
		if err != nil {
			return m, err
		}
		m.Figure = s.rate(start, until, n)
		t.learn(m.Figure, t.Contender.Rates.Jobs)
		if m.Units, err = p.ended(ctx); err != nil { // with those that ended during the stop: the meters ran
			return m, err
		}
		m.Throughput, err = p.throughput(ctx, s.first, t.Window/20, 1)
		return m, err
	})
}

// work returns when the window is over and something has ended, or when all n units have.
func (p *prepared) work(ctx context.Context, n int) error {
	if p.trial.Contender.Drain {
		return p.waitFor(ctx, n, 12*p.trial.Window+30*time.Second)
	}
	begin := time.Now()
	for p.system.Progress() < int64(n) {
		since := time.Since(begin)
		if since > p.trial.Window && (p.system.Progress() > 0 || since > p.trial.Window+patience) {
			return nil
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	return p.waitFor(ctx, n, patience)
}

// rate is how many units ended a second. If the backlog lasted, it is taken from the first completion to the end of
// the window, so that starting up does not count; if it did not, from the start to the last completion.
func (s span) rate(start, until time.Time, backlog int) float64 {
	if s.total >= backlog || s.after == 0 {
		return float64(s.total) / s.last.Sub(start).Seconds()
	}
	return float64(s.after) / until.Sub(s.first).Seconds()
}

// runSteps runs a number of chains to their end: as they progress side by side, they end at about the same time, and
// the number of those that ended in a window would say little.
func runSteps(load func(system.System) loader) func(context.Context, *Trial) (Measure, error) {
	return func(ctx context.Context, t *Trial) (Measure, error) { return runChains(ctx, t, load) }
}

// loader inserts n instances.
type loader = func(ctx context.Context, n int) error

func runChains(ctx context.Context, t *Trial, load func(system.System) loader) (Measure, error) {
	return on(ctx, t, system.Conf{}, func(p *prepared) (m Measure, err error) {
		n, err := t.load(ctx, t.sized(t.Contender.Rates.Steps, 1.0/system.ChainLength, 50), load(p.system))
		if err != nil {
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
			if err := p.system.Start(ctx); err != nil {
				return err
			}
			return p.waitFor(ctx, n, 12*t.Window+30*time.Second)
		})
		if err != nil {
			return m, err
		}
		s, err := p.span(ctx, time.Now().Add(time.Hour))
		if err != nil {
			return m, err
		}
		m.Units = s.total * system.ChainLength
		m.Figure = float64(m.Units) / s.last.Sub(start).Seconds()
		t.learn(m.Figure, t.Contender.Rates.Steps)
		return m, nil
	})
}
