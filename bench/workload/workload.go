// Package workload holds what is measured. Each workload drives any system that can do it, and takes its figures from
// the database: a client's word only tells when to look. The exceptions are times that only a caller can know, latency
// and memory, and even there the database is asked whether the work was really done.
package workload

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable/bench/lab"
	"github.com/gendurable/gendurable/bench/system"
)

// Workload is one row block of the table.
type Workload struct {
	Name string
	// Group is a second name, which several workloads may share.
	Group string
	Title string
	// Unit is of the primary figure, Per what costs are divided by.
	Unit, Per string
	// Lower says that a lower figure is better.
	Lower bool
	// Ratio says that the figure compares a contender with itself, and not with the floor.
	Ratio bool
	// OnlyByName workloads take long and are left out of the whole; they run once and without peers.
	OnlyByName bool
	// Fits says whether a contender can do it, and should.
	Fits func(system.Contender, system.System) bool
	Run  func(context.Context, *Trial) (Measure, error)
}

// Trial is one run of one contender.
type Trial struct {
	Contender system.Contender
	Server    *lab.Server
	// Window is about how long the measured part lasts.
	Window time.Duration
	// Smoke asks for the smallest sizes that still prove that it works.
	Smoke bool
	Log   *slog.Logger
	// Profile, if not nil, is given the database when the measured part has ended.
	Profile func(context.Context, *lab.Database) error
	// Recall is shared by the trials of one workload, for figures that later ones build on.
	Recall map[string]float64
}

// Point is a moment of a run: seconds since its start, and a figure.
type Point struct {
	At    float64 `json:"at_s"`
	Value float64 `json:"value"`
}

// Measure is what a trial found.
type Measure struct {
	// Figure is in the workload's unit.
	Figure float64 `json:"figure"`
	// More are further figures by name, with their unit in the name.
	More map[string]float64 `json:"more,omitempty"`
	// Units is what was done, in what Per names.
	Units int      `json:"units"`
	Cost  lab.Cost `json:"cost"`
	// Throughput over time, in units a second.
	Throughput []Point `json:"throughput,omitempty"`
	// Latencies in milliseconds, sorted.
	Latencies []float64 `json:"latencies_ms,omitempty"`
}

// All are the workloads in the order of the table.
func All() []Workload {
	var all []Workload
	for _, w := range [][]Workload{backlogs, latencies, signals, fanOut, inserts, memory, sustained, scale, nodes} {
		all = append(all, w...)
	}
	return all
}

// Select returns the workloads that have one of the names as name or group; without names all that are not OnlyByName.
func Select(names []string) ([]Workload, error) {
	var chosen []Workload
	known := map[string]bool{}
	for _, w := range All() {
		known[w.Name], known[w.Group] = true, true
		take := len(names) == 0 && !w.OnlyByName
		for _, n := range names {
			take = take || n == w.Name || n == w.Group
		}
		if take {
			chosen = append(chosen, w)
		}
	}
	for _, n := range names {
		if !known[n] {
			return nil, fmt.Errorf("unknown workload %q; -list shows them", n)
		}
	}
	return chosen, nil
}

// prepared is a system on a fresh database, ready to be measured.
type prepared struct {
	trial   *Trial
	db      *lab.Database
	system  system.System
	stopped bool
}

// can is the Fits of a workload that any system of the kind S does.
func can[S any](_ system.Contender, s system.System) bool {
	_, ok := s.(S)
	return ok
}

// stop stops the system, once.
func (p *prepared) stop(ctx context.Context) error {
	if p.stopped {
		return nil
	}
	p.stopped = true
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	if err := p.system.Stop(ctx); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return nil
}

// on runs fn with the trial's system, set up on a fresh database, and removes everything afterwards. Conf may ask for
// what its fields say; its database and log are set here.
func on(ctx context.Context, t *Trial, conf system.Conf, fn func(*prepared) (Measure, error)) (m Measure, err error) {
	db, err := t.Server.Database(ctx)
	if err != nil {
		return m, err
	}
	defer func() {
		if e := db.Drop(context.WithoutCancel(ctx)); err == nil {
			err = e
		}
	}()
	conf.DB, conf.Log = db, t.Log
	p := &prepared{trial: t, db: db, system: t.Contender.New(conf)}
	defer func() {
		if e := p.stop(ctx); err == nil {
			err = e
		}
	}()
	if err := p.system.Setup(ctx); err != nil {
		return m, fmt.Errorf("set up: %w", err)
	}
	return fn(p)
}

// metered runs do between readings of the meters. It stops the system before the last reading, so that its backends
// have reported.
func (p *prepared) metered(ctx context.Context, do func() error) (cost lab.Cost, err error) {
	if err := p.db.Reset(ctx); err != nil {
		return cost, err
	}
	meter, err := p.db.Meter(ctx)
	if err != nil {
		return cost, err
	}
	if err := do(); err != nil {
		return cost, err
	}
	if err := p.stop(ctx); err != nil {
		return cost, err
	}
	if cost, err = meter.Stop(ctx); err != nil {
		return cost, err
	}
	if p.trial.Profile != nil {
		err = p.trial.Profile(ctx, p.db)
	}
	return cost, err
}

// ended reads how many units have ended, by the database.
func (p *prepared) ended(ctx context.Context) (n int, err error) {
	err = p.db.Pool.QueryRow(ctx, "SELECT count(*) FROM ("+p.system.Ended()+") AS e").Scan(&n)
	return n, err
}

// count runs a query of one number.
func (p *prepared) count(ctx context.Context, query string) (n int, err error) {
	err = p.db.Pool.QueryRow(ctx, query).Scan(&n)
	return n, err
}

// waitFor polls until the database confirms n ended units. It looks when the system believes to be through, and each
// second otherwise, so that looking costs the system nothing to speak of.
func (p *prepared) waitFor(ctx context.Context, n int, limit time.Duration) error {
	deadline, look := time.Now().Add(limit), time.Now().Add(time.Second)
	for {
		if p.system.Progress() >= int64(n) || time.Now().After(look) {
			got, err := p.ended(ctx)
			if err != nil || got >= n {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%d of %d had ended after %s", got, n, limit)
			}
			look = time.Now().Add(time.Second)
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// span is when units ended.
type span struct {
	first, last time.Time
	total       int // all that ended
	after       int // those that ended later than the first
}

func (p *prepared) span(ctx context.Context, until time.Time) (s span, err error) {
	var first, last *time.Time
	err = p.db.Pool.QueryRow(ctx, `
		WITH e AS MATERIALIZED (`+p.system.Ended()+`)
		SELECT min(e.at), max(e.at), count(*), count(*) FILTER (WHERE e.at > (SELECT min(at) FROM e)) FROM e WHERE e.at <= $1`, until).
		Scan(&first, &last, &s.total, &s.after)
	if err == nil && s.total == 0 {
		err = fmt.Errorf("nothing ended")
	}
	if err == nil {
		s.first, s.last = *first, *last
	}
	return s, err
}

// throughput is how many units ended in each part of the run, in units a second, each counted weight times.
func (p *prepared) throughput(ctx context.Context, from time.Time, width time.Duration, weight float64) ([]Point, error) {
	rows, err := p.db.Pool.Query(ctx, `
		SELECT floor(extract(epoch FROM e.at - $1::timestamptz) / $2)::int AS part, count(*) FROM (`+p.system.Ended()+`) AS e
		 WHERE e.at >= $1 GROUP BY 1 ORDER BY 1`, from, width.Seconds())
	if err != nil {
		return nil, err
	}
	var points []Point
	var part, n int
	_, err = pgx.ForEachRow(rows, []any{&part, &n}, func() error {
		for len(points) < part { // parts in which nothing ended
			points = append(points, Point{At: float64(len(points)) * width.Seconds()})
		}
		points = append(points, Point{At: float64(part) * width.Seconds(), Value: float64(n) * weight / width.Seconds()})
		return nil
	})
	return points, err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// speed is how fast the machine is just now, by the floor's first trial: 1 is the machine that the contenders' Rates
// were written down on.
const speed = "speed"

// sized is how many units of a rate fit in a window, on this machine as it is now, within bounds.
func (t *Trial) sized(rate, factor float64, smallest int) int {
	if t.Smoke {
		rate = min(rate, 4_000)
	}
	if s, ok := t.Recall[speed]; ok {
		rate *= s
	}
	return max(int(rate*factor*t.Window.Seconds()), smallest)
}

// learn takes the machine's speed from a trial of the floor.
func (t *Trial) learn(figure, nominal float64) {
	if t.Contender.Role == system.Floor && nominal > 0 {
		t.Recall[speed] = min(max(figure/nominal, 0.02), 2)
	}
}

// load loads up to n units in parts, and stops early when that takes four windows: a busy machine gets less to do.
// It returns how many it has loaded.
func (t *Trial) load(ctx context.Context, n int, do func(ctx context.Context, n int) error) (int, error) {
	part := max(n/20, 50)
	loaded := 0
	for start := time.Now(); loaded < n && (loaded < part || time.Since(start) < 4*t.Window); loaded += part {
		if err := do(ctx, part); err != nil {
			return loaded, fmt.Errorf("load: %w", err)
		}
	}
	return loaded, nil
}
