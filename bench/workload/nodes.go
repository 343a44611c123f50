package workload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gendurable/gendurable/bench/system"
)

var nodes = []Workload{nodesWorkload(1), nodesWorkload(2), nodesWorkload(4)}

func nodesWorkload(n int) Workload {
	return Workload{
		Name: fmt.Sprintf("nodes-%d", n), Group: "nodes", OnlyByName: true,
		Title: fmt.Sprintf("Jobs from a backlog, engines in %d processes on one database", n),
		Unit:  "jobs/s", Per: "job",
		Fits: func(c system.Contender, _ system.System) bool { return c.Role == system.Ours },
		Run:  func(ctx context.Context, t *Trial) (Measure, error) { return runNodes(ctx, t, n) },
	}
}

// runNodes lets processes work off a backlog side by side. Each row counts its claims: if one was claimed twice, the
// claims were not disjoint, and the trial has failed.
func runNodes(ctx context.Context, t *Trial, n int) (Measure, error) {
	return on(ctx, t, system.Conf{}, func(p *prepared) (m Measure, err error) {
		backlog, err := t.load(ctx, t.sized(t.Contender.Rates.Jobs, 1.5, 200), p.system.(system.Jobs).LoadJobs)
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
			until, err = p.runProcesses(ctx, n, backlog)
			return err
		})
		if err != nil {
			return m, err
		}
		s, err := p.span(ctx, until)
		if err != nil {
			return m, err
		}
		m.Figure = s.rate(start, until, backlog)
		if m.Units, err = p.ended(ctx); err != nil {
			return m, err
		}
		if p.trial.Smoke {
			return m, nil // a machine that stands still for a second has rows given back, which are claimed again
		}
		// What was not done in time is given back by the processes as they end, and claimed by those that still run.
		var twice int
		err = p.db.Pool.QueryRow(ctx, "SELECT count(*) FROM gen_durable WHERE status = 'done' AND claims <> 1 AND updated_at <= $1", until).Scan(&twice)
		if err == nil && twice > 0 {
			err = fmt.Errorf("%d jobs were claimed more than once", twice)
		}
		return m, err
	})
}

// runProcesses runs them for the window, or until all is done, and returns when that was.
func (p *prepared) runProcesses(ctx context.Context, n, backlog int) (until time.Time, err error) {
	var children []*process
	defer func() {
		for _, c := range children {
			err = errors.Join(err, c.end())
		}
	}()
	for i := range n {
		c, err := spawn(ctx, childTask{
			Kind: "node", URL: p.db.URL, Contender: p.trial.Contender.Name(), Node: fmt.Sprintf("node-%d", i),
		})
		if err != nil {
			return until, err
		}
		children = append(children, c)
	}
	for _, c := range children {
		if _, err := c.line(); err != nil {
			return until, err
		}
	}
	for end := time.Now().Add(p.trial.Window); time.Now().Before(end); {
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return until, err
		}
		left, err := p.count(ctx, "SELECT count(*) FROM (SELECT FROM gen_durable WHERE status IN ('runnable', 'executing') LIMIT 1) AS l")
		if err != nil || left == 0 {
			until, _ = p.db.Now(ctx)
			return until, err
		}
	}
	return p.db.Now(ctx)
}
