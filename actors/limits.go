package actors

import (
	"sync/atomic"

	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// NameLimiter is the name of the limiter actor below the root.
const NameLimiter = "limiter"

// Admit asks the limiter actor to admit claimed rows, most urgent first. Sender: scheduler. Rows that name no limit need
// not be asked about.
type Admit struct {
	Quiet
	Worker   string
	Requests []limiter.Request
	// Reply receives exactly one answer. Invariant: capacity 1, so that the actor never blocks.
	Reply chan<- Admitted
}

// Admitted answers an Admit.
type Admitted struct {
	// Decisions are parallel to the requests; nil with an error.
	Decisions []limiter.Decision
	// Err is nil, ErrRestarting, ErrStopped or the backend's. After any error rows may hold slots nobody knows of: give
	// the claims back, which gives these back as well.
	Err error
}

// CreditSlots gives back slots whose holders have ended, by a committed outcome or because the row was taken away. It is
// not answered: the actor repeats it until the backend has it, or has the backend count again. Senders: flusher, reaper,
// node, scheduler.
type CreditSlots struct {
	Quiet
	// Released with a negative Shard are rows that may have had a slot: see pg.Options.ForeignLimiter.
	Released []limiter.Release
	// Lost are slots of rows that others have taken: they are no longer renewed, and whoever took the row gives them back.
	Lost []limiter.Slot
}

// GivenUp lists the slots that outcomes have given up: committed ones freed them, and those of stale ones are lost, because
// whoever took the row gives its slot back. A continuation that keeps its key keeps its slot.
func GivenUp(outcomes []pg.Outcome, verdicts []pg.Verdict) (c CreditSlots) {
	for i := range outcomes {
		o := &outcomes[i]
		if o.SlotKey == "" {
			continue
		}
		slot := limiter.Slot{ID: o.ID, Claim: o.Claim, Key: o.SlotKey, Shard: o.SlotShard}
		switch v := &verdicts[i]; {
		case v.Fate == pg.Stale:
			c.Lost = append(c.Lost, slot)
		case v.Status == pg.Executing && o.Key == pg.KeepKey:
		default:
			c.Released = append(c.Released, limiter.Release{Slot: slot, Mark: v.Mark})
		}
	}
	return c
}

// LimitCounters are what the limiter actor counts since the engine started. Every field may be read at any time from any
// goroutine. Those ending in Now are gauges.
type LimitCounters struct {
	// Admissions are calls of the backend, AdmittedRows and DeniedRows the answers in them; Contended are denied rows whose
	// limit may have had something left, Unconfigured those whose limit does not exist.
	Admissions, AdmittedRows, DeniedRows, Contended, Unconfigured atomic.Int64
	// Credits are calls of the backend, CreditedSlots the slots in them, CreditRetries the calls that failed.
	Credits, CreditedSlots, CreditRetries atomic.Int64
	// HeldNow are slots admitted here and not given back, UncreditedNow those given back that the backend does not have yet.
	HeldNow, UncreditedNow atomic.Int64
	// Reconciles are completed ones; Healed are slots that nobody held and that they found, Swept keys that they forgot.
	Reconciles, Healed, Swept atomic.Int64
	// Errors are calls other than Credit that failed.
	Errors atomic.Int64
}

// LimitsInForce tells who claims which limits there are now. Sender: limiter. In a process it arrives again after each
// reconcile, whether it has changed or not.
type LimitsInForce struct {
	Quiet
	Config limiter.Config
}

// SlotsFreed tells who claims that slots of these gates' keys have been given back here. A hint. Sender: limiter.
type SlotsFreed struct {
	Quiet
	Keys []string
}
