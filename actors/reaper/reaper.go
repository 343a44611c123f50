// Package reaper sweeps rows that nobody else will move: claims whose lease has expired, and awaits whose
// deadline has passed. Any number of nodes may sweep at once.
package reaper

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// Store makes the sweeps; each handles at most limit rows, and begins where from says, which is zero or the Next of a result.
// With a limit of 0 it only shows that the database answers.
type Store interface {
	ReapLeases(ctx context.Context, from time.Time, limit int) (pg.ReapResult, error)
	WakeDeadlines(ctx context.Context, from time.Time, limit int) (pg.ReapResult, error)
}

// Config describes the reaper. Logger and Store are required.
type Config struct {
	Logger   *slog.Logger
	Counters *actors.Counters
	Store    Store
	// Poke learns of the queues that got work. May be nil.
	Poke *actor.PID
	// LeaseEvery and DeadlineEvery are the times between two sweeps. Default 5 s and 1 s.
	LeaseEvery, DeadlineEvery time.Duration
	// Heartbeat is the engine's heartbeat interval. So long the database must have answered before leases are swept: from
	// the start, and after a statement that failed or took more than half of it. While the database was away no
	// lease could be extended; swept at once, the steps that the whole fleet is running would run a second
	// time. Default 20 s.
	Heartbeat time.Duration
	// Batch is the most rows a sweep takes; a full sweep is followed by the next at once. Default 10,000.
	Batch int
}

// Props makes the Props of the reaper. It takes no messages.
func Props(c Config) *actor.Props {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	if c.LeaseEvery <= 0 {
		c.LeaseEvery = 5 * time.Second
	}
	if c.DeadlineEvery <= 0 {
		c.DeadlineEvery = time.Second
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = 20 * time.Second
	}
	if c.Batch <= 0 {
		c.Batch = 10_000
	}
	outage := new(actors.Outage)
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor {
		return &reaper{Config: c, outage: outage,
			backoff: actors.Backoff{First: c.DeadlineEvery, Max: max(c.DeadlineEvery, c.Heartbeat)},
			looking: actors.Backoff{First: min(c.LeaseEvery, c.Heartbeat), Max: c.Heartbeat}}
	})
}

type reaper struct {
	Config
	life              actors.Life
	outage            *actors.Outage
	leases, deadlines sweep
	backoff           actors.Backoff // of the deadline sweep
	looking           actors.Backoff // of the look whether the database is back
}

type (
	// lookDue begins the wait for a heartbeat without faults.
	lookDue struct{}
	looked  struct {
		now time.Time
		err error
	}
	leasesDue    struct{}
	deadlinesDue struct{}
	leasesSwept  result
	deadlinesHit result
)

// sweep is where the sweeps of one kind stand.
type sweep struct {
	from   time.Time // where the next one begins, unless that is at the start
	rescan actors.Rescan
}

type result struct {
	pg.ReapResult
	err  error
	full bool // it began at the start
	took time.Duration
}

// begins says where a sweep that is made now begins.
func (s *sweep) begins() time.Time {
	if s.rescan.Due(time.Now()) {
		return time.Time{}
	}
	return s.from
}

// unless says where to begin unless a sweep does: one that begins at the start may never come to an end.
func (s *sweep) unless(at time.Time) {
	if s.from.IsZero() {
		s.from = at
	}
}

// swept takes what a sweep came to.
func (s *sweep) swept(r result) {
	if r.full {
		s.rescan.Took(r.took, time.Now())
	}
	if r.err == nil {
		s.from = r.Next
	}
}

// timed makes one sweep.
func timed(ctx context.Context, f func(context.Context, time.Time, int) (pg.ReapResult, error), from time.Time, limit int) (r result) {
	begun := time.Now()
	r.ReapResult, r.err = f(ctx, from, limit)
	r.took, r.full = time.Since(begun), from.IsZero()
	return r
}

func (r *reaper) Receive(ctx actor.Context) {
	switch m := r.life.Open(ctx).(type) {
	case *actor.Started:
		r.life.After(0, lookDue{})
		r.life.After(0, deadlinesDue{})
	case lookDue:
		r.call(func(ctx context.Context) any {
			now, err := r.look(ctx)
			return looked{now, err}
		})
	case looked:
		if r.failed("expired leases cannot be swept just now", m.err) {
			r.life.After(r.looking.Next(), lookDue{})
			return
		}
		r.looking.Reset()
		r.leases.unless(m.now)
		r.deadlines.unless(m.now)
		r.life.After(r.Heartbeat, leasesDue{})
	case leasesDue:
		from := r.leases.begins()
		r.call(func(ctx context.Context) any {
			// First a look: a sweep that is sent to a database that stands still is carried out when it goes on, before
			// any lease could be extended.
			if _, err := r.look(ctx); err != nil {
				return leasesSwept{err: err}
			}
			return leasesSwept(timed(ctx, r.Store.ReapLeases, from, r.Batch))
		})
	case leasesSwept:
		r.leases.swept(result(m))
		if r.failed("expired leases cannot be swept just now", m.err) {
			r.life.After(r.looking.Next(), lookDue{})
			return
		}
		r.Counters.Reaped.Add(int64(m.Rows))
		if m.Rows > 0 {
			r.Logger.Warn("gendurable: gave back rows whose lease had expired", "rows", m.Rows)
		}
		r.announce(m.Queues)
		r.life.After(r.next(m.Rows, r.LeaseEvery), leasesDue{})
	case deadlinesDue:
		from := r.deadlines.begins()
		r.call(func(ctx context.Context) any {
			return deadlinesHit(timed(ctx, r.Store.WakeDeadlines, from, r.Batch))
		})
	case deadlinesHit:
		r.deadlines.swept(result(m))
		if r.failed("timeouts of awaits cannot be swept just now", m.err) {
			r.life.After(r.backoff.Next(), deadlinesDue{})
			return
		}
		r.backoff.Reset()
		r.Counters.DeadlinesWoken.Add(int64(m.Rows))
		r.announce(m.Queues)
		r.life.After(r.next(m.Rows, r.DeadlineEvery), deadlinesDue{})
	}
}

func (r *reaper) call(f func(ctx context.Context) any) {
	r.life.GoFor(max(r.Heartbeat, 10*time.Second), f)
}

// look makes sure that the database answers, and soon. It returns from where on what becomes due is to be seen.
func (r *reaper) look(ctx context.Context) (time.Time, error) {
	begun := time.Now()
	now, err := r.Store.ReapLeases(ctx, time.Time{}, 0)
	if err != nil {
		return time.Time{}, err
	}
	if took := time.Since(begun); took > r.Heartbeat/2 {
		return time.Time{}, fmt.Errorf("gendurable: the database took %v to answer", took)
	}
	return now.Next, nil
}

func (r *reaper) failed(what string, err error) bool {
	if err == nil {
		r.outage.Over(r.Logger, "the reaper can sweep again")
		return false
	}
	r.Counters.SweepErrors.Add(1)
	r.outage.Begin(r.Logger, what, err)
	return true
}

// next is the pause after a sweep of so many rows.
func (r *reaper) next(rows int, every time.Duration) time.Duration {
	if rows >= r.Batch {
		return 0
	}
	return every
}

func (r *reaper) announce(queues []string) {
	if len(queues) > 0 {
		r.life.Send(r.Poke, actors.Announce{Queues: queues})
	}
}
