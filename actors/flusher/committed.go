package flusher

import (
	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// committed answers the callers of a flush that succeeded, and tells the await and poke actors.
func (w *writer) committed(outcomes []pg.Outcome, waiters []waiter, flushed pg.Flushed) {
	c := w.Counters
	c.Flushes.Add(1)
	c.Outcomes.Add(int64(len(outcomes)))
	actors.Max(&c.LargestFlush, int64(len(outcomes)))
	if len(flushed.Verdicts) != len(outcomes) {
		// The committer broke its contract. The outcomes may be durable: asked again, the guard answers stale.
		w.Logger.Error("gendurable: a flush answered the wrong number of outcomes", "outcomes", len(outcomes), "verdicts", len(flushed.Verdicts))
		for _, wt := range waiters {
			wt.answer(actors.Committed{Err: actors.ErrRestarting})
		}
		return
	}
	if c.AwaitingNow.Load() > 0 && w.Await != nil {
		if s := settled(outcomes, flushed.Verdicts); len(s) > 0 {
			w.root.Send(w.Await, actors.Settlements{Settled: s})
		}
	}
	var stale, cancelled int64
	var next []continuation
	for i, v := range flushed.Verdicts {
		switch v.Fate {
		case pg.Stale:
			stale++
		case pg.Cancelled:
			cancelled++
		}
		if v.HasInbox || v.HasChildren {
			next = append(next, continuation{waiters[i], v})
			continue
		}
		waiters[i].answer(actors.Committed{Verdict: v})
	}
	if len(next) > 0 {
		w.next.add(next)
	}
	if w.Limiter != nil {
		if credit := actors.GivenUp(outcomes, flushed.Verdicts); len(credit.Released)+len(credit.Lost) > 0 {
			w.root.Send(w.Limiter, credit)
		}
	}
	if stale > 0 {
		c.Stale.Add(stale)
	}
	if cancelled > 0 {
		c.Cancelled.Add(cancelled)
	}
	if len(flushed.Woken) > 0 && w.Poke != nil {
		w.root.Send(w.Poke, actors.Announce{Queues: flushed.Woken})
	}
	w.later(outcomes, flushed.Verdicts)
}

// settled lists what callers of Await need to know of a flush. What is not known for certain is left to their
// own look at the database: a cancelled row's reason, and a flush whose COMMIT went unanswered.
func settled(outcomes []pg.Outcome, verdicts []pg.Verdict) []pg.Settled {
	var list []pg.Settled
	for i, v := range verdicts {
		if v.Fate != pg.Committed || v.Assumed {
			continue
		}
		o := &outcomes[i]
		switch v.Status {
		case pg.Done, pg.Failed, pg.AwaitingSignal:
			list = append(list, pg.Settled{ID: o.ID, Status: v.Status, Result: o.Result, Error: o.Error, Awaits: o.Awaits})
		}
	}
	return list
}
