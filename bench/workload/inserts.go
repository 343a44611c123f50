package workload

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gendurable/gendurable/bench/system"
)

const insertCallers = 16

var inserts = []Workload{
	{
		Name: "insert-single", Group: "inserts", Title: "Inserts, one job a call, 16 callers", Unit: "rows/s", Per: "row",
		Fits: can[system.Inserts],
		Run: func(ctx context.Context, t *Trial) (Measure, error) {
			return runInserts(ctx, t, insertCallers, func(s system.System) error { return s.(system.Inserts).InsertOne(ctx) })
		},
	},
	{
		Name: "insert-many", Group: "inserts", Title: "Inserts, 1,000 jobs a call with their ids, 2 callers", Unit: "rows/s", Per: "row",
		Fits: can[system.ManyInserts],
		Run: func(ctx context.Context, t *Trial) (Measure, error) {
			return runInserts(ctx, t, 2, func(s system.System) error { return s.(system.ManyInserts).InsertMany(ctx, 1_000) })
		},
	},
	{
		Name: "insert-bulk", Group: "inserts", Title: "Inserts, 10,000 jobs a call by the fastest way, 1 caller", Unit: "rows/s", Per: "row",
		Fits: can[system.BulkInserts],
		Run: func(ctx context.Context, t *Trial) (Measure, error) {
			return runInserts(ctx, t, 1, func(s system.System) error { return s.(system.BulkInserts).InsertBulk(ctx, 10_000) })
		},
	},
}

// runInserts inserts for the window. No worker runs.
func runInserts(ctx context.Context, t *Trial, callers int, insert func(system.System) error) (Measure, error) {
	return on(ctx, t, system.Conf{}, func(p *prepared) (m Measure, err error) {
		s := p.system.(system.Inserts)
		if err := p.db.Settle(ctx); err != nil {
			return m, err
		}
		before, err := p.count(ctx, s.Rows())
		if err != nil {
			return m, err
		}
		var took time.Duration
		m.Cost, err = p.metered(ctx, func() error {
			start := time.Now()
			defer func() { took = time.Since(start) }()
			var group sync.WaitGroup
			failed := make(chan error, callers)
			for range callers {
				group.Go(func() {
					for time.Since(start) < t.Window && len(failed) == 0 {
						if err := insert(p.system); err != nil {
							failed <- fmt.Errorf("insert: %w", err)
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
		})
		if err != nil {
			return m, err
		}
		after, err := p.count(ctx, s.Rows())
		if err != nil {
			return m, err
		}
		m.Units = after - before
		m.Figure = float64(m.Units) / took.Seconds()
		return m, nil
	})
}
