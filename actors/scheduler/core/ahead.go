package core

import "time"

// farthest bounds how far a scheduler looks ahead, whatever its poll.
const farthest = 24 * time.Hour

// ahead knows when the next row becomes eligible that is scheduled for later and of which nobody has told this scheduler: what
// was there before it started, and what follows an announced row. Claims that it makes of its own accord look for it, so that
// such a row has not to wait for a poll. Only the next is remembered. When its time has come, the claim that takes it looks again.
type ahead struct {
	at  time.Time // of the next; zero = none is known of. Invariant: in whole milliseconds, never too early.
	due bool      // the next claim looks ahead
	// asking: the claim that is on its way does.
	asking bool
}

// foresee notes that a row becomes eligible at t. The earliest stays: one that is no more costs a claim in vain.
func (a *ahead) foresee(t time.Time) {
	t = t.Truncate(time.Millisecond).Add(time.Millisecond)
	if a.at.IsZero() || t.Before(a.at) {
		a.at = t
	}
}

// come reports whether the time of what was foreseen has come.
func (a *ahead) come(now time.Time) bool {
	if a.at.IsZero() || a.at.After(now) {
		return false
	}
	a.at, a.due = time.Time{}, true
	return true
}

// ask is how far the claim looks that is made now; 0 = it does not. Each poll looks, so that two of them overlap.
func (a *ahead) ask(cfg Config) time.Duration {
	a.asking, a.due = a.due, false
	if !a.asking {
		return 0
	}
	return 2 * min(max(cfg.PollIdle, cfg.PollBusy), farthest)
}

// answered takes what a claim came to.
func (a *ahead) answered(e *ClaimResult, now time.Time) {
	switch {
	case !a.asking:
	case e.Err != nil:
		a.due = true
	case e.Ahead > 0:
		a.foresee(now.Add(e.Ahead))
	}
	a.asking = false
}
