package workload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
	"github.com/gendurable/gendurable/bench/lab"
	"github.com/gendurable/gendurable/bench/system"
	"github.com/gendurable/gendurable/pg"
)

const (
	scaleClaims = 40
	scaleLimit  = 100
)

var scale = []Workload{{
	Name: "scale", Group: "scale", OnlyByName: true, Lower: true, Unit: "worst ÷ quiet", Per: "claim",
	Title: "The engine's claims of 100 rows, begun where its scheduler begins them, against each pathology: the worst median by that of a quiet table",
	Fits: func(c system.Contender, _ system.System) bool {
		return c.Role == system.Ours && c.Config == "default" // the statement is the same in each configuration
	},
	Run: runScale,
}}

// pathology is a state of the table. Its SQL is run with one parameter, by which sizes are divided.
type pathology struct {
	name string
	sql  string
	// dead asks for dead index entries that no vacuum can remove, as many as the parameter says.
	dead int
}

// rowsOf inserts rows that are ready for the claim, or differ from that as the arguments say.
func rowsOf(n int, priority, status, eligible, more, values string) string {
	return fmt.Sprintf(`INSERT INTO gen_durable (fsm, step, priority, status, eligible_at, has_inbox, has_children%s)
		SELECT 'scale', 'run', %s, '%s'::durable_status, %s, false, false%s FROM generate_series(1, %d / $1::int) AS i`,
		more, priority, status, eligible, values, n)
}

var pathologies = []pathology{
	{name: "quiet"},
	{name: "10 M terminal", sql: rowsOf(10_000_000, "0", "done", "now() - interval '2 h'", "", "")},
	{name: "1 M runnable", sql: rowsOf(1_000_000, "0", "runnable", "now() - interval '30 min' + i * interval '1 ms'", "", "")},
	{name: "5,000 executing", sql: rowsOf(5_000, "0", "executing", "now() - interval '2 h'",
		", locked_by, lease_expires_at", ", 'gendurable:default@other', now() + interval '1 h'")},
	{name: "100,000 of a blocked key", sql: rowsOf(100_000, "0", "runnable", "now() - interval '2 h'",
		", concurrency_key", ", 'key:blocked'")},
	{name: "100,000 far future, urgent", sql: rowsOf(100_000, "-10", "runnable", "now() + interval '1 day'", "", "")},
	{name: "500,000 dead under an old snapshot", dead: 500_000},
}

// runScale times the engine's own claims, through its own pool, on a table for each pathology.
func runScale(ctx context.Context, t *Trial) (m Measure, err error) {
	m.More = map[string]float64{}
	divisor := 1
	if t.Smoke {
		divisor = 100
	}
	var quiet float64
	for _, p := range pathologies {
		median, cost, err := t.claims(ctx, p, divisor)
		if err != nil {
			return m, fmt.Errorf("%s: %w", p.name, err)
		}
		m.Units += scaleClaims
		m.Cost.Postgres += cost.Postgres
		m.Cost.Client += cost.Client
		m.Cost.WAL += cost.WAL
		m.Cost.Commits += cost.Commits
		m.More[p.name+", ms"] = median
		if p.name == "quiet" {
			quiet = median
		}
		m.Figure = max(m.Figure, ratio(median, quiet))
	}
	return m, nil
}

// claims returns the median time of a claim in milliseconds.
func (t *Trial) claims(ctx context.Context, patho pathology, divisor int) (median float64, cost lab.Cost, err error) {
	m, err := on(ctx, t, system.Conf{}, func(p *prepared) (m Measure, err error) {
		if patho.dead > 0 {
			release, err := p.die(ctx, patho.dead/divisor)
			if err != nil {
				return m, err
			}
			defer release()
		}
		if patho.sql != "" {
			if _, err := p.db.Pool.Exec(ctx, patho.sql, divisor); err != nil {
				return m, err
			}
		}
		if patho.name == "100,000 of a blocked key" {
			const block = `UPDATE gen_durable SET status = 'executing', locked_by = 'gendurable:default@other',
				lease_expires_at = now() + interval '1 h' WHERE id = (SELECT min(id) FROM gen_durable)`
			if _, err := p.db.Pool.Exec(ctx, block); err != nil {
				return m, err
			}
		}
		// What the claims find is younger than what they have to get past.
		const fresh = `INSERT INTO gen_durable (fsm, step, eligible_at, has_inbox, has_children)
			SELECT 'scale', 'run', now() - interval '1 min' + i * interval '1 ms', false, false
			  FROM generate_series(1, $1::int) AS i`
		if _, err := p.db.Pool.Exec(ctx, fresh, (scaleClaims+10)*scaleLimit); err != nil {
			return m, err
		}
		if err := p.db.Settle(ctx); err != nil {
			return m, err
		}
		m.Cost, err = p.metered(ctx, func() error { return p.timeClaims(ctx, &m) })
		return m, err
	})
	return Quantile(m.Latencies, 0.5), m.Cost, err
}

// die leaves dead entries at the head of the index that claims scan, and the snapshot that keeps them.
func (p *prepared) die(ctx context.Context, n int) (release func(), err error) {
	if _, err := p.db.Pool.Exec(ctx, rowsOf(n, "0", "runnable", "now() - interval '2 h'", "", ""), 1); err != nil {
		return nil, err
	}
	if release, err = p.holdSnapshot(ctx); err != nil {
		return nil, err
	}
	if _, err := p.db.Pool.Exec(ctx, "UPDATE gen_durable SET status = 'done', updated_at = now()"); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

func (p *prepared) timeClaims(ctx context.Context, m *Measure) (err error) {
	host, err := p.db.Open(ctx, 2)
	if err != nil {
		return err
	}
	defer host.Close()
	pool, err := pg.EnginePool(ctx, host, 2)
	if err != nil {
		return err
	}
	defer pool.Close()
	store, err := pg.Open(ctx, pool, pg.Options{})
	if err != nil {
		return err
	}
	// What decides where a claim begins in an engine decides it here: the core of its scheduler, with slots that are free at once.
	c := core.New(core.Config{Concurrency: scaleLimit, MaxPrefetch: 1}, false, time.Now())
	var ended []actors.StepEnded
	for fx := *c.On(core.Tick{}, time.Now()); len(m.Latencies) < scaleClaims+5; {
		for _, row := range fx.Start {
			ended = append(ended, actors.StepEnded{ID: row.ID, End: actors.EndCommitted, Delay: -1})
		}
		switch {
		case fx.Claim > 0:
			result, err := claimAs(ctx, store, &fx)
			if err != nil {
				return err
			}
			m.Latencies = append(m.Latencies, millis(result.Took))
			fx = *c.On(result, time.Now())
		case len(ended) > 0:
			fx = *c.On(core.Ended{Rows: ended}, time.Now())
			ended = nil
		default:
			if err := pause(ctx, max(time.Until(fx.Wake), time.Millisecond)); err != nil {
				return err
			}
			fx = *c.On(core.Tick{}, time.Now())
		}
	}
	m.Latencies = m.Latencies[5:] // the first ones plan and warm up, and find out where to begin
	slices.Sort(m.Latencies)
	return nil
}

// claimAs makes the claim that a scheduler's core asks for.
func claimAs(ctx context.Context, store *pg.Store, fx *core.Effects) (r core.ClaimResult, err error) {
	report := pg.ClaimReport{Survey: fx.Survey, Horizon: fx.Ahead}
	begun := time.Now()
	r.Rows, err = store.Claim(ctx, pg.ClaimRequest{
		Queue: "default", Worker: "gendurable:default@scale", Lease: time.Minute, Limit: fx.Claim, Skip: fx.Skip, Limits: fx.Limits,
		Since: fx.Since, Others: fx.Others, Report: &report,
	})
	r.Took = time.Since(begun)
	n := len(r.Rows)
	if err == nil && n == 0 {
		err = errors.New("a claim found nothing")
	}
	if err != nil {
		return r, err
	}
	r.Looked, r.Priorities, r.At, r.Ahead = report.Looked, report.Priorities, report.At, report.Ahead
	r.LastPriority, r.LastEligible = r.Rows[n-1].Priority, r.Rows[n-1].EligibleAt
	return r, nil
}
