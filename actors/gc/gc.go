// Package gc deletes what has outlived its retention, and keeps the tables free of dead rows while a
// queue is busy. Any number of nodes may run it at once.
package gc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// Store does the work.
type Store interface {
	CollectTerminal(ctx context.Context, doneAfter, failedAfter time.Duration, from pg.Position, limit int) (int, pg.Position, error)
	CollectSideTables(ctx context.Context, limit int) (int, error)
	VacuumStats(ctx context.Context) (pg.VacuumStats, error)
	// Vacuum skips a table that another node is vacuuming.
	Vacuum(ctx context.Context) error
}

// Config describes the gc. Logger and Store are required.
type Config struct {
	Logger   *slog.Logger
	Counters *actors.Counters
	Store    Store
	// Every is the time between two collections. Default 60 s.
	Every time.Duration
	// DoneAfter and FailedAfter are how long ended instances are kept. Default 1 day and 7 days.
	DoneAfter, FailedAfter time.Duration
	// Batch is the most rows a statement deletes. Default 10,000.
	Batch int
	// LookEvery is the time between two looks at the number of dead rows; negative = never, which leaves them to
	// autovacuum. Default 5 s.
	LookEvery time.Duration
	// MaxDead is the number of dead rows that is worth a vacuum. Default 20,000.
	MaxDead int64
	// MaxPause is the longest pause after vacuums that could not remove the dead rows, as an open transaction may
	// still see them. Default 10 min.
	MaxPause time.Duration
	// Timeout bounds each statement but the vacuum. Default 1 min.
	Timeout time.Duration
}

// Props makes the Props of the gc. It takes no messages.
func Props(c Config) *actor.Props {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	positive(&c.Every, time.Minute)
	positive(&c.DoneAfter, 24*time.Hour)
	positive(&c.FailedAfter, 7*24*time.Hour)
	if c.Batch <= 0 {
		c.Batch = 10_000
	}
	if c.LookEvery == 0 {
		c.LookEvery = 5 * time.Second
	}
	if c.MaxDead <= 0 {
		c.MaxDead = 20_000
	}
	positive(&c.MaxPause, 10*time.Minute)
	positive(&c.Timeout, time.Minute)
	outage := new(actors.Outage)
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor {
		return &gc{Config: c, outage: outage, health: health{every: c.LookEvery, maxDead: c.MaxDead, maxPause: c.MaxPause}}
	})
}

func positive(d *time.Duration, otherwise time.Duration) {
	if *d <= 0 {
		*d = otherwise
	}
}

type gc struct {
	Config
	life   actors.Life
	outage *actors.Outage
	health health
	// at is how far the collections of terminal instances have come; the next one begins there, unless that is at the start. A
	// collection has it to itself.
	at     pg.Position
	rescan actors.Rescan
}

type (
	collectDue struct{}
	collected  struct {
		rows, side int
		err        error
	}
	lookDue struct{}
	looked  struct {
		stats pg.VacuumStats
		err   error
	}
	vacuumed struct {
		took time.Duration
		left pg.VacuumStats
		err  error
	}
)

func (g *gc) Receive(ctx actor.Context) {
	switch m := g.life.Open(ctx).(type) {
	case *actor.Started:
		g.life.After(g.Every, collectDue{})
		if g.LookEvery > 0 {
			g.life.After(g.LookEvery, lookDue{})
		}
	case collectDue:
		g.life.Go(func(ctx context.Context) any { return g.collect(ctx) })
	case collected:
		g.failed("ended instances cannot be deleted just now", m.err)
		g.Counters.Collected.Add(int64(m.rows))
		g.Counters.CollectedSide.Add(int64(m.side))
		g.life.After(g.Every, collectDue{})
	case lookDue:
		g.life.GoFor(g.Timeout, func(ctx context.Context) any {
			stats, err := g.Store.VacuumStats(ctx)
			return looked{stats, err}
		})
	case looked:
		g.looked(m)
	case vacuumed:
		g.failed("the tables cannot be vacuumed just now", m.err)
		if m.err == nil {
			g.Counters.Vacuums.Add(1)
		}
		g.life.After(g.health.vacuumed(m.took, m.left), lookDue{})
	}
}

// collect deletes batch after batch until nothing is left, or the life ends.
func (g *gc) collect(ctx context.Context) (c collected) {
	var side error
	c.rows, c.err = g.collectTerminal(ctx)
	c.side, side = g.collectSide(ctx)
	c.err = errors.Join(c.err, side)
	return c
}

func (g *gc) collectTerminal(ctx context.Context) (rows int, err error) {
	from, full := g.at, g.rescan.Due(time.Now())
	switch {
	case full:
		from = pg.Position{}
	case from == pg.Position{}:
		return 0, nil // it would begin at the start
	}
	for n := g.Batch; ctx.Err() == nil && n >= g.Batch; rows += n {
		begun := time.Now()
		bounded, cancel := context.WithTimeout(ctx, g.Timeout)
		n, from, err = g.Store.CollectTerminal(bounded, g.DoneAfter, g.FailedAfter, from, g.Batch)
		cancel()
		if now := time.Now(); full { // as a rule only the first statement walks what is dead
			g.rescan.Took(now.Sub(begun), now)
			full = false
		}
		if err != nil {
			if g.at == (pg.Position{}) { // from the start it may never come to an end
				g.at.EndedAt = time.Now().Add(-min(g.DoneAfter, g.FailedAfter))
			}
			return rows, err
		}
		if from.EndedAt.After(g.at.EndedAt) { // one that was spared before may be far behind
			g.at = from
		}
	}
	return rows, nil
}

func (g *gc) collectSide(ctx context.Context) (rows int, err error) {
	for n := g.Batch; ctx.Err() == nil && n >= g.Batch; rows += n {
		bounded, cancel := context.WithTimeout(ctx, g.Timeout)
		n, err = g.Store.CollectSideTables(bounded, g.Batch)
		cancel()
		if err != nil {
			return rows + n, err
		}
	}
	return rows, nil
}

func (g *gc) looked(m looked) {
	if g.failed("the statistics of dead rows cannot be read just now", m.err) {
		g.life.After(g.MaxPause/10, lookDue{})
		return
	}
	if !g.health.wanted(m.stats) {
		g.life.After(g.LookEvery, lookDue{})
		return
	}
	g.life.Go(func(ctx context.Context) any {
		start := time.Now()
		v := vacuumed{err: g.Store.Vacuum(ctx)}
		v.took = time.Since(start)
		if v.err == nil {
			v.left, v.err = g.Store.VacuumStats(ctx)
		}
		return v
	})
}

func (g *gc) failed(what string, err error) bool {
	if err == nil {
		g.outage.Over(g.Logger, "the gc works again")
		return false
	}
	g.Counters.SweepErrors.Add(1)
	g.outage.Begin(g.Logger, what, err)
	return true
}
