// Package await answers callers that wait for instances to settle. Instances that end in this process are
// answered from the commit; all others by one batched look at the database a tick. Without waiters there are no
// queries.
package await

import (
	"context"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// Rows looks where instances stand. An id without an answer, or with an empty status, has no instance.
type Rows interface {
	Settled(ctx context.Context, ids []int64) ([]pg.Settled, error)
}

// Config describes the await actor. Logger and Rows are required.
type Config struct {
	Logger *slog.Logger
	// Counters also tells the flushers, by AwaitingNow, whether anybody waits.
	Counters *actors.Counters
	Rows     Rows
	// Interval is the time between two looks for all waiters, counted from the end of the first. Default 25 ms; a
	// look that takes long makes it longer, so that looks take no more than a quarter of the time.
	Interval time.Duration
	// MaxInterval is the longest time between looks while the database is away. Default 2 s.
	MaxInterval time.Duration
	// Timeout bounds a look; after it the next one is made on another connection. Default 10 s.
	Timeout time.Duration
}

// Props makes the Props of the await actor. It takes actors.AwaitInstance and actors.Settlements.
func Props(c Config) *actor.Props {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	if c.Interval <= 0 {
		c.Interval = 25 * time.Millisecond
	}
	if c.MaxInterval <= 0 {
		c.MaxInterval = 2 * time.Second
	}
	if c.Timeout <= 0 {
		c.Timeout = 10 * time.Second
	}
	outage := new(actors.Outage)
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor {
		return &await{Config: c, outage: outage, waiting: make(map[int64][]waiter),
			backoff: actors.Backoff{First: c.Interval, Max: c.MaxInterval}}
	})
}

// waiter is one caller.
type waiter struct {
	actors.AwaitInstance
	// since is the number of looks that had begun when the caller came: what they find may be older than the caller.
	since int64
}

func (w *waiter) left() bool {
	select {
	case <-w.Done: // never ready when nil
		return true
	default:
		return false
	}
}

func (w *waiter) answer(r actors.AwaitReply) {
	select {
	case w.Reply <- r:
	default:
	}
}

type await struct {
	Config
	life    actors.Life
	outage  *actors.Outage
	backoff actors.Backoff

	waiting map[int64][]waiter
	n       int64   // waiters in waiting
	fresh   []int64 // to look for at once
	looks   int64   // looks begun
	looking bool    // one is in flight
	asked   bool    // a look is in the mailbox
	armed   bool    // the tick is set
	// handling is the caller of the message in hand, for the case that handling it panics.
	handling chan<- actors.AwaitReply
}

type (
	// look is sent by the actor to itself, so that it comes behind the callers that are in the mailbox already.
	look struct{ actors.Quiet }
	tick struct{}
	seen struct {
		look    int64
		asked   []int64
		settled []pg.Settled
		err     error
		took    time.Duration
	}
)

func (a *await) Receive(ctx actor.Context) {
	switch m := a.life.Open(ctx).(type) {
	case actors.AwaitInstance:
		a.handling = m.Reply
		a.register(ctx, m)
		a.handling = nil
	case actors.Settlements:
		a.settled(ctx, m.Settled)
	case look:
		a.asked = false
		a.look(a.fresh)
	case tick:
		a.armed = false
		a.look(a.all())
	case seen:
		a.seen(m)
	case *actor.Restarting:
		a.failAll(actors.ErrRestarting)
	case *actor.Stopping:
		a.failAll(actors.ErrStopped)
	}
}

func (a *await) register(ctx actor.Context, m actors.AwaitInstance) {
	a.waiting[m.ID] = append(a.waiting[m.ID], waiter{AwaitInstance: m, since: a.looks})
	a.n++
	// Before the first look: a commit that does not see this count is seen by the look.
	a.Counters.AwaitingNow.Add(1)
	a.refresh(ctx, m.ID)
}

// refresh looks for an id at once.
func (a *await) refresh(ctx actor.Context, id int64) {
	a.fresh = append(a.fresh, id)
	if !a.looking && !a.asked {
		a.asked = true
		ctx.Send(ctx.Self(), look{})
	}
}

// settled takes the news of a local commit. An end is final and answered at once. A parked instance may have
// been woken since, even by a caller who waits for what comes next: for it the database is asked.
func (a *await) settled(ctx actor.Context, list []pg.Settled) {
	for _, s := range list {
		if _, ok := a.waiting[s.ID]; !ok {
			continue
		}
		if s.Status == pg.AwaitingSignal {
			a.refresh(ctx, s.ID)
			continue
		}
		before := a.n
		a.answer(s, a.looks)
		a.Counters.AwaitPushed.Add(before - a.n)
	}
}

// look asks the database where the ids stand, unless it is being asked already; then those that are due are
// looked for afterwards.
func (a *await) look(ids []int64) {
	if a.looking || len(ids) == 0 {
		return
	}
	a.fresh = nil // part of ids
	a.looking = true
	a.looks++
	a.Counters.AwaitProbes.Add(1)
	n := a.looks
	a.life.GoFor(a.Timeout, func(ctx context.Context) any {
		start := time.Now()
		settled, err := a.Rows.Settled(ctx, ids)
		return seen{look: n, asked: ids, settled: settled, err: err, took: time.Since(start)}
	})
}

// all forgets callers that gave up and returns the ids that somebody waits for.
func (a *await) all() []int64 {
	ids := make([]int64, 0, len(a.waiting))
	for id, ws := range a.waiting {
		if a.keep(id, ws, func(w *waiter) bool { return !w.left() }) {
			ids = append(ids, id)
		}
	}
	return ids
}

// keep keeps the waiters for which stay is true and reports whether there are any.
func (a *await) keep(id int64, ws []waiter, stay func(*waiter) bool) bool {
	kept := ws[:0]
	for i := range ws {
		if stay(&ws[i]) {
			kept = append(kept, ws[i])
		}
	}
	gone := int64(len(ws) - len(kept))
	clear(ws[len(kept):])
	a.n -= gone
	a.Counters.AwaitingNow.Add(-gone)
	if len(kept) == 0 {
		delete(a.waiting, id)
		return false
	}
	a.waiting[id] = kept
	return true
}

func (a *await) seen(m seen) {
	a.looking = false
	pause := max(a.Interval, 3*m.took)
	if m.err != nil {
		a.outage.Begin(a.Logger, "waiting callers cannot be served just now; they go on waiting", m.err)
		pause = a.backoff.Next()
		a.fresh = nil // the tick looks for all
	} else {
		a.outage.Over(a.Logger, "waiting callers can be served again")
		a.backoff.Reset()
		a.found(m)
	}
	if len(a.fresh) > 0 {
		a.look(a.fresh)
	}
	if !a.looking && !a.armed && a.n > 0 {
		a.armed = true
		a.life.After(pause, tick{})
	}
}

// found answers callers from what a look found.
func (a *await) found(m seen) {
	found := make(map[int64]struct{}, len(m.settled))
	for _, s := range m.settled {
		found[s.ID] = struct{}{}
		a.answer(s, m.look-1)
	}
	for _, id := range m.asked {
		if _, ok := found[id]; !ok {
			a.answer(pg.Settled{ID: id}, m.look-1)
		}
	}
}

// answer answers the callers that wait for what s says and that came when no more than since looks had begun.
func (a *await) answer(s pg.Settled, since int64) {
	ws, ok := a.waiting[s.ID]
	if !ok {
		return
	}
	a.keep(s.ID, ws, func(w *waiter) bool {
		if w.since > since || !w.AnsweredBy(s.Status) {
			return true
		}
		w.answer(actors.AwaitReply{Settled: s})
		return false
	})
}

func (a *await) failAll(err error) {
	if a.handling != nil {
		(&waiter{AwaitInstance: actors.AwaitInstance{Reply: a.handling}}).answer(actors.AwaitReply{Err: err})
	}
	for id, ws := range a.waiting {
		a.keep(id, ws, func(w *waiter) bool {
			w.answer(actors.AwaitReply{Err: err})
			return false
		})
	}
}
