// Package limiter is the actor between those who claim rows and the backend that limits them: it passes admissions on,
// collects credits and repeats them until they have arrived, and lets the backend renew and reconcile.
package limiter

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/limiter"
)

// Config describes the actor. Logger and Backend are required.
type Config struct {
	Logger   *slog.Logger
	Counters *actors.Counters
	// Limits are counted here. Nil: they are not counted.
	Limits  *actors.LimitCounters
	Backend limiter.Limiter
	// Own are the limits that this process stores when it starts.
	Own limiter.Config
	// InForce learns which limits there are: after the start and after each reconcile. Freed learns of which gates'
	// keys slots were given back here. Both may be nil, and must not block.
	InForce func(limiter.Config)
	Freed   func(keys []string)
	// Every is the time between two reconciles. Default 60 s.
	Every time.Duration
	// Lease is for how long slots are renewed, which happens RenewEvery; negative = never. Default 60 s and 20 s.
	Lease, RenewEvery time.Duration
	// Timeout bounds each call of the backend but a reconcile, which has ten times as long. Default 10 s.
	Timeout time.Duration
	// MaxUncredited is how many slots wait for a backend that is away, before they are left to the next reconcile.
	// Default 100,000.
	MaxUncredited int
}

// Props makes the Props of the actor. It takes actors.Admit, actors.CreditSlots and actors.Flush.
func Props(c Config) *actor.Props {
	if c.Counters == nil {
		c.Counters = new(actors.Counters)
	}
	if c.Limits == nil {
		c.Limits = new(actors.LimitCounters)
	}
	if c.InForce == nil {
		c.InForce = func(limiter.Config) {}
	}
	if c.Freed == nil {
		c.Freed = func([]string) {}
	}
	otherwise(&c.Every, time.Minute)
	otherwise(&c.Lease, time.Minute)
	if c.RenewEvery == 0 {
		c.RenewEvery = 20 * time.Second
	}
	otherwise(&c.Timeout, 10*time.Second)
	if c.MaxUncredited <= 0 {
		c.MaxUncredited = 100_000
	}
	kept := &ledger{held: map[slotID]limiter.Slot{}, counters: c.Limits, most: c.MaxUncredited}
	outage := new(actors.Outage)
	return actors.NewProps(c.Logger, c.Counters, func() actor.Actor {
		return &limits{Config: c, ledger: kept, outage: outage,
			retry: actors.Backoff{First: 50 * time.Millisecond, Max: 5 * time.Second},
			again: actors.Backoff{First: 200 * time.Millisecond, Max: min(c.Every, 10*time.Second)}}
	})
}

func otherwise(d *time.Duration, to time.Duration) {
	if *d <= 0 {
		*d = to
	}
}

// limits is one incarnation of the actor. What must outlive it is in the ledger, which one incarnation after the other
// uses.
type limits struct {
	Config
	life   actors.Life
	ledger *ledger
	outage *actors.Outage
	retry  actors.Backoff // of credits
	// contended is how many credits in a row waited in vain for counters that others hold.
	contended int
	again     actors.Backoff // of everything else that failed

	crediting   bool // a Credit is on its way, or waits for its pause to end
	reconciling bool
	anew        bool            // another reconcile is wanted behind the one that runs
	turn        int             // of the timer that is good; an earlier one's reconcile was made out of turn
	draining    chan<- struct{} // Invariant: non-nil from a Flush on, until it is answered
}

type (
	syncDue      struct{}
	reconcileDue struct{ turn int }
	renewDue     struct{}
	creditDue    struct{}
	synced       struct {
		inForce limiter.Config
		err     error
	}
	admitted struct{ err error }
	credited struct {
		batch []limiter.Release
		err   error
	}
	reconciled struct {
		done limiter.Reconciled
		took time.Duration
		synced
	}
	renewed struct{ err error }
	tooLate struct{}
)

func (l *limits) Receive(ctx actor.Context) {
	switch m := l.life.Open(ctx).(type) {
	case *actor.Started:
		l.start()
	case actors.Admit:
		l.admit(m)
	case admitted:
		l.failed("rows cannot be admitted to their limits just now", m.err)
	case actors.CreditSlots:
		l.ledger.release(m)
		l.credit()
	case creditDue:
		l.crediting = false
		l.credit()
	case credited:
		l.credited(m)
	case syncDue:
		l.life.GoFor(l.Timeout, func(ctx context.Context) any {
			inForce, err := l.Backend.SyncConfig(ctx, l.Own)
			return synced{inForce, err}
		})
	case synced:
		l.synced(m)
	case reconcileDue:
		if m.turn == l.turn {
			l.reconcile()
		}
	case reconciled:
		l.reconciled(m)
	case renewDue:
		l.renew()
	case renewed:
		l.failed("slots cannot be renewed just now", m.err)
		l.life.After(l.RenewEvery, renewDue{})
	case actors.Flush:
		l.draining = m.Done
		l.life.After(m.Timeout, tooLate{})
		l.drained()
	case tooLate:
		l.endDrain()
	case *actor.Stopping, *actor.Restarting: // the next incarnation knows of no Flush
		l.endDrain()
	}
}

// start stores the process's limits before anything else is done with them. An earlier incarnation may have died with a
// Credit on its way, of which nobody knows the fate: the reconcile that follows finds its slots.
func (l *limits) start() {
	l.ledger.forgetSent()
	l.life.After(0, syncDue{})
	if l.RenewEvery > 0 {
		l.life.After(l.RenewEvery, renewDue{})
	}
	l.credit()
}

func (l *limits) synced(m synced) {
	if l.failed("the limits cannot be stored just now", m.err) {
		l.life.After(l.again.Next(), syncDue{})
		return
	}
	l.again.Reset()
	l.InForce(m.inForce)
	l.reconcileIn(0)
}

// admit asks the backend on a goroutine, which also answers: a call that outlives its actor still has its answer.
func (l *limits) admit(m actors.Admit) {
	l.life.Go(func(life context.Context) any {
		ctx, cancel := context.WithTimeout(life, l.Timeout)
		defer cancel()
		answer := actors.Admitted{Err: actors.ErrRestarting}
		defer func() { m.Reply <- answer }() // also when the backend panics
		decisions, err := l.Backend.Admit(ctx, m.Worker, m.Requests)
		if err != nil && life.Err() != nil {
			return admitted{}
		}
		// Before the answer, so that no credit can come before it, and whoever sees a step's end finds its admission counted.
		l.ledger.admit(m.Requests, decisions)
		l.count(decisions)
		answer = actors.Admitted{Decisions: decisions, Err: err}
		return admitted{err}
	})
}

func (l *limits) count(decisions []limiter.Decision) {
	if decisions == nil {
		return
	}
	l.Limits.Admissions.Add(1)
	for _, d := range decisions {
		switch d.Verdict {
		case limiter.Admitted:
			l.Limits.AdmittedRows.Add(1)
			continue
		case limiter.Contended:
			l.Limits.Contended.Add(1)
		case limiter.Unconfigured:
			l.Limits.Unconfigured.Add(1)
		}
		l.Limits.DeniedRows.Add(1)
	}
}

// credit sends what is to be credited, unless a Credit is on its way; what arrives meanwhile is the next one.
func (l *limits) credit() {
	if l.crediting {
		return
	}
	batch := l.ledger.send()
	if len(batch) == 0 {
		l.drained()
		return
	}
	l.crediting = true
	l.life.GoFor(l.Timeout, func(ctx context.Context) any {
		return credited{batch, l.Backend.Credit(ctx, batch)}
	})
}

// quietly is how many credits in a row may wait in vain for others before that is worth a word: every admission and every
// reconcile holds the counters for a moment, and on a busy machine for a long one.
const quietly = 5

func (l *limits) credited(m credited) {
	if errors.Is(m.err, limiter.ErrContended) {
		l.contended++
	} else {
		l.contended = 0
	}
	if wait := l.contended > 0 && l.contended <= quietly; wait || l.failed("slots cannot be given back just now", m.err) {
		l.Limits.CreditRetries.Add(1)
		if errors.Is(m.err, limiter.ErrUncertain) {
			// Sent again, it might free the same slots a second time.
			l.ledger.forgetSent()
			l.recount()
		} else if l.ledger.keepSent() {
			l.recount()
		}
		l.life.After(l.retry.Next(), creditDue{})
		return
	}
	l.retry.Reset()
	l.ledger.forgetSent()
	l.Limits.Credits.Add(1)
	slots, keys := known(m.batch)
	l.Limits.CreditedSlots.Add(int64(slots))
	if slots > 0 {
		l.Freed(keys)
	}
	l.crediting = false
	l.credit()
}

// recount asks for a reconcile out of turn.
func (l *limits) recount() {
	if l.reconciling {
		l.anew = true
		return
	}
	l.reconcile()
}

func (l *limits) reconcileIn(d time.Duration) {
	l.turn++
	l.life.After(d, reconcileDue{l.turn})
}

func (l *limits) reconcile() {
	if l.reconciling {
		return
	}
	l.reconciling = true
	l.life.GoFor(10*l.Timeout, func(ctx context.Context) any {
		begun := time.Now()
		done, err := l.Backend.Reconcile(ctx)
		r := reconciled{done: done, took: time.Since(begun)}
		if r.err = err; err == nil {
			r.inForce, r.err = l.Backend.SyncConfig(ctx, limiter.Config{})
		}
		return r
	})
}

func (l *limits) reconciled(m reconciled) {
	l.reconciling = false
	l.Limits.Healed.Add(int64(m.done.Healed))
	l.Limits.Swept.Add(int64(m.done.Swept))
	if l.failed("limits cannot be reconciled just now", m.err) {
		l.reconcileIn(l.again.Next())
		return
	}
	l.again.Reset()
	l.Limits.Reconciles.Add(1)
	l.InForce(m.inForce)
	if l.anew {
		l.anew = false
		l.reconcile()
		return
	}
	l.reconcileIn(max(l.Every, 9*m.took)) // it walks what an open transaction keeps, and holds counters meanwhile
}

func (l *limits) renew() {
	held := l.ledger.slots()
	if len(held) == 0 {
		l.life.After(l.RenewEvery, renewDue{})
		return
	}
	l.life.GoFor(l.Timeout, func(ctx context.Context) any { return renewed{l.Backend.Renew(ctx, held, l.Lease)} })
}

// drained answers a Flush once everything is credited.
func (l *limits) drained() {
	if !l.crediting && l.ledger.empty() {
		l.endDrain()
	}
}

func (l *limits) endDrain() {
	if l.draining != nil {
		close(l.draining)
		l.draining = nil
	}
}

func (l *limits) failed(what string, err error) bool {
	if err == nil {
		l.outage.Over(l.Logger, "the limits can be reached again")
		return false
	}
	l.Limits.Errors.Add(1)
	l.outage.Begin(l.Logger, what, err)
	return true
}
