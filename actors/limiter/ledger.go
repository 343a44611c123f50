package limiter

import (
	"slices"
	"sync"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/limiter"
)

// slotID tells slots apart: a row holds at most one of a key at once, under one claim.
type slotID struct {
	id    int64
	claim int
	key   string
}

func idOf(s limiter.Slot) slotID { return slotID{s.ID, s.Claim, s.Key} }

// ledger is what an incarnation of the actor hands down to the next: the slots that are held, and those that are to be
// given back. It is safe for concurrent use.
type ledger struct {
	mu       sync.Mutex // guards all below
	held     map[slotID]limiter.Slot
	waiting  []limiter.Release
	sent     []limiter.Release // on its way to the backend
	counters *actors.LimitCounters
	most     int
}

// count publishes the gauges.
func (l *ledger) count() {
	l.counters.HeldNow.Store(int64(len(l.held)))
	l.counters.UncreditedNow.Store(int64(len(l.waiting) + len(l.sent)))
}

func (l *ledger) admit(requests []limiter.Request, decisions []limiter.Decision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, d := range decisions {
		if r := requests[i]; d.Verdict == limiter.Admitted && r.Gate != "" {
			s := limiter.Slot{ID: r.ID, Claim: r.Claim, Key: r.Gate, Shard: d.Shard}
			l.held[idOf(s)] = s
		}
	}
	l.count()
}

func (l *ledger) release(m actors.CreditSlots) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range m.Lost {
		delete(l.held, idOf(s))
	}
	for _, r := range m.Released {
		_, held := l.held[idOf(r.Slot)]
		delete(l.held, idOf(r.Slot))
		if r.Shard >= 0 || held { // else the row was denied; or who has drawn its slot is gone, and renews it no more
			l.waiting = append(l.waiting, r)
		}
	}
	l.count()
}

// send takes what waits.
func (l *ledger) send() []limiter.Release {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent, l.waiting = l.waiting, nil
	l.count()
	return l.sent
}

// forgetSent drops what was sent: it has arrived, or is left to a reconcile.
func (l *ledger) forgetSent() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = nil
	l.count()
}

// keepSent puts what was sent back in front of what waits. When that is too much it drops all and says so.
func (l *ledger) keepSent() (dropped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting, l.sent = append(l.sent, l.waiting...), nil
	if dropped = len(l.waiting) > l.most; dropped {
		l.waiting = nil
	}
	l.count()
	return dropped
}

func (l *ledger) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiting)+len(l.sent) == 0
}

func (l *ledger) slots() []limiter.Slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	slots := make([]limiter.Slot, 0, len(l.held))
	for _, s := range l.held {
		slots = append(slots, s)
	}
	return slots
}

func keysOf(batch []limiter.Release) []string {
	keys := make([]string, len(batch))
	for i, r := range batch {
		keys[i] = r.Key
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
