package flusher

import (
	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/pg"
)

// waiter is the caller of one entry.
type waiter struct {
	gone  <-chan struct{}
	reply chan<- actors.Committed
}

// left reports whether the caller gave up.
func (w waiter) left() bool {
	select {
	case <-w.gone: // never ready when nil
		return true
	default:
		return false
	}
}

// answer never blocks: a reply channel has room for its one answer.
func (w waiter) answer(c actors.Committed) {
	select {
	case w.reply <- c:
	default:
	}
}

// batch is entries that are flushed together, kept as two slices so that the outcomes go to the committer
// without being copied again.
// Invariant: len(outcomes) == len(waiters).
type batch struct {
	outcomes []pg.Outcome
	waiters  []waiter
	bytes    int
}

func (b *batch) add(o pg.Outcome, w waiter, bytes int) {
	b.outcomes = append(b.outcomes, o)
	b.waiters = append(b.waiters, w)
	b.bytes += bytes
}

func (b *batch) len() int { return len(b.outcomes) }

// reset empties the batch for its next use and lets go of what its entries pointed to.
func (b *batch) reset() {
	clear(b.outcomes)
	clear(b.waiters)
	b.outcomes, b.waiters, b.bytes = b.outcomes[:0], b.waiters[:0], 0
}

// part is a run of entries of a batch that is flushed as one, and how often that failed.
type part struct{ lo, hi, failed int }

func (p part) size() int { return p.hi - p.lo }

// sift moves the entries for which take is true out of the part: it calls take once an entry, closes the gaps
// in order, and returns what stays. The slots behind hold entries that are not the batch's any more.
func (b *batch) sift(p part, take func(o *pg.Outcome, w waiter) bool) part {
	at := p.lo
	for i := p.lo; i < p.hi; i++ {
		if take(&b.outcomes[i], b.waiters[i]) {
			continue
		}
		if at != i {
			b.outcomes[at], b.waiters[at] = b.outcomes[i], b.waiters[i]
		}
		at++
	}
	p.hi = at
	return p
}

// fail answers all entries of the part with err.
func (b *batch) fail(p part, err error) {
	for i := p.lo; i < p.hi; i++ {
		b.waiters[i].answer(actors.Committed{Err: err})
	}
}

// weigh estimates how many bytes an outcome sends to the database.
func weigh(o *pg.Outcome) int {
	n := 128 + len(o.State) + len(o.Result) + len(o.Error) + len(o.NewKey) + 8*len(o.Handed)
	for _, a := range o.Awaits {
		n += len(a)
	}
	for i := range o.Children {
		c := &o.Children[i]
		n += 128 + len(c.State) + len(c.CorrelationKey) + len(c.ConcurrencyKey)
	}
	return n
}

// touched calls f with the rows whose locks the outcome needs: its own, and its parent's if it ends.
func touched(o *pg.Outcome, f func(id int64)) {
	f(o.ID)
	if o.ParentID != 0 && (o.Kind == pg.KindDone || o.Kind == pg.KindFailed) {
		f(o.ParentID)
	}
}

// keyed reports whether the outcome inserts rows with correlation keys: it may have to wait for a key that
// somebody has inserted and not committed yet, which no look at rows can tell.
func keyed(o *pg.Outcome) bool {
	for i := range o.Children {
		if o.Children[i].CorrelationKey != "" {
			return true
		}
	}
	return false
}
